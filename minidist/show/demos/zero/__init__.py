"""ZeRO: what each rank holds during a step, in plain data parallelism and in the three stages."""

from minidist.nn.gpt import GPT
from minidist.show.demos.shared.memory_log import last_steps, train_logging_memory
from minidist.show.demos.shared.runs import diverges, warm_ranks
from minidist.show.demos.zero import scene
from minidist.show.demos.zero.bug import BUG, train_stale
from minidist.show.demos.zero.run import config_of, elements_of, layouts_of
from minidist.show.player.animation import Animation


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A step in each stage, on so many ranks, of a model of width ``size``."""
    config, layouts = config_of(ranks, size, seed), layouts_of(ranks)
    with warm_ranks() as warm:
        runs = [warm.train(config, layout, train_logging_memory, trace=True) for layout in layouts]
        proofs = [warm.prove(config, run) for run in runs]
        stale = warm.train(config, layouts[1], train_stale, trace=True)
        verdict = diverges(warm.first_difference(config, stale, train_stale))
    held = [[last_steps(rank.log) for rank in run.ranks] for run in runs]
    bad = [last_steps(rank.log, 2) for rank in stale.ranks]
    most = int(1.03 * max(rank.highest() for stage in held for rank in stage))
    model = GPT(config.model)
    total, block = elements_of(model), elements_of(model.blocks[-1])
    scenes = [scene.of_stage(stage, held[stage], most, total, proofs[stage]) for stage in range(4)]
    marks = [[scene.stale_mark(rank, 4 * (block - block // ranks))] for rank in bad]
    broken = scene.of_stage(1, bad, most, total, verdict, marks)
    title, logs = "ZeRO: what each rank holds during a step", [rank.log for rank in runs[0].ranks]
    return Animation("zero", title, tuple(scenes), broken, BUG, logs)
