"""ZeRO: what a rank keeps in plain data parallelism and in the three stages, and what it holds during a step."""

from minidist.show.demos.shared.memory_log import last_steps, train_logging_memory
from minidist.show.demos.shared.runs import check_width, heads_of, warm_ranks
from minidist.show.demos.zero import story
from minidist.show.demos.zero.bug import BUG, train_stale, train_stale_sharded
from minidist.show.stage.animation import Animation
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

STALE = {1: train_stale, 2: train_stale, 3: train_stale_sharded}  # the stages that gather parameters


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    check_width(size, 4, 256)
    return TrainConfig(
        layers=6, heads=heads_of(size), width=size, context=16, global_batch=ranks, micro_batch=1, steps=3, seed=seed
    )


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Show the bytes by formula, and two steps of a model of width ``size`` on ``ranks`` ranks in each stage."""
    config = config_of(ranks, size, seed)
    layouts = [Layout(dp=ranks, zero=stage) for stage in range(4)]  # 0: plain data parallelism
    with warm_ranks() as warm:
        right = [warm.train_proved(config, layout, train_logging_memory) for layout in layouts]
        stale = {stage: warm.train_broken(config, layouts[stage], train) for stage, train in STALE.items()}
    held = [last_steps(run.ranks[0].log, 2) for run, _ in right]
    bad = [last_steps(stale.get(stage, right[0])[0].ranks[0].log, 2) for stage in range(4)]
    most = int(1.03 * max(rank.highest() for rank in (*held, *bad)))
    stories = (
        story.tanks(ranks),
        story.steps(held, most, right[0][1]),
        story.steps(bad, most, stale[1][1], tuple(STALE), BUG),
    )
    logs = [rank.log for rank in right[0][0].ranks]
    return Animation("zero", "ZeRO: what each rank holds during a step", stories, logs)
