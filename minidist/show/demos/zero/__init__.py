"""ZeRO: what a rank keeps in plain data parallelism and in the three stages, and what it holds during a step."""

from minidist.nn.gpt import GPT
from minidist.show.demos.shared.memory_log import last_steps, train_logging_memory
from minidist.show.demos.shared.runs import diverges, warm_ranks
from minidist.show.demos.zero import scene, states
from minidist.show.demos.zero.bug import BUG, train_stale, train_stale_sharded
from minidist.show.demos.zero.run import config_of, elements_of, layouts_of
from minidist.show.player.animation import Animation

STALE = {1: train_stale, 2: train_stale, 3: train_stale_sharded}  # the stages that gather parameters


def animation(ranks: int, size: int, seed: int) -> Animation:
    """The bytes by formula, and two steps in each stage, on ``ranks`` ranks, of a model of width ``size``."""
    config, layouts = config_of(ranks, size, seed), layouts_of(ranks)
    with warm_ranks() as warm:
        runs = [warm.train(config, layout, train_logging_memory, trace=True) for layout in layouts]
        proofs = [warm.prove(config, run) for run in runs]
        stale = [warm.train(config, layouts[stage], train, trace=True) for stage, train in STALE.items()]
        pairs = zip(stale, STALE.values(), strict=True)
        forensics = [diverges(warm.first_difference(config, run, train)) for run, train in pairs]
    held = [last_steps(run.ranks[0].log, 2) for run in runs]
    bad = [last_steps(run.ranks[0].log, 2) for run in stale]
    most = int(1.03 * max(rank.highest() for rank in held))
    model = GPT(config.model)
    total, block = elements_of(model), elements_of(model.blocks[-1])
    verdict = f"The bits of one process: {runs[0].fingerprint[:8]}"
    scenes = [
        scene.of_stage(stage, held[stage], ranks, most, total, verdict, proofs[stage],
                       before=held[stage - 1] if stage else None)
        for stage in range(4)
    ]  # fmt: skip
    broken = [
        scene.of_stage(stage, one, ranks, most, total, "Stale weights: training goes on, and wrong.", details,
                       scene.stale_marks(one, 4 * block) if stage == 3
                       else [scene.stale_mark(one, 4 * (block - block // ranks))])
        for stage, one, details in zip(STALE, bad, forensics, strict=True)
    ]  # fmt: skip
    title, logs = "ZeRO: what each rank holds during a step", [rank.log for rank in runs[0].ranks]
    return Animation("zero", title, (states.scene(ranks), *scenes), broken[0], BUG, logs, tuple(broken[1:]))
