"""ZeRO: what a rank keeps in plain data parallelism and in the three stages, and what it holds during a step."""

from minidist.show.demos.shared.memory_log import last_steps, train_logging_memory
from minidist.show.demos.shared.runs import diverges, warm_ranks
from minidist.show.demos.zero import story
from minidist.show.demos.zero.bug import BUG, train_stale, train_stale_sharded
from minidist.show.demos.zero.run import config_of, layouts_of
from minidist.show.stage.animation import Animation

STALE = {1: train_stale, 2: train_stale, 3: train_stale_sharded}  # the stages that gather parameters


def animation(ranks: int, size: int, seed: int) -> Animation:
    """The bytes by formula, and two steps in each stage, on ``ranks`` ranks, of a model of width ``size``."""
    config, layouts = config_of(ranks, size, seed), layouts_of(ranks)
    with warm_ranks() as warm:
        runs = [warm.train(config, layout, train_logging_memory, trace=True) for layout in layouts]
        proofs = [warm.prove(config, run) for run in runs]
        stale = {stage: warm.train(config, layouts[stage], train, trace=True) for stage, train in STALE.items()}
        found = [diverges(warm.first_difference(config, stale[stage], train)) for stage, train in STALE.items()]
    held = [last_steps(run.ranks[0].log, 2) for run in runs]
    bad = [last_steps(stale.get(stage, runs[0]).ranks[0].log, 2) for stage in range(4)]
    most = int(1.03 * max(rank.highest() for rank in (*held, *bad)))
    stories = (
        story.tanks(ranks),
        story.steps(held, most, proofs[0]),
        story.steps(bad, most, found[0], tuple(STALE), BUG),
    )
    return Animation("zero", "ZeRO: what each rank holds during a step", stories, [rank.log for rank in runs[0].ranks])
