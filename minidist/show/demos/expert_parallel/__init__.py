"""Expert parallelism: tokens travel to the ranks that have their experts, and come home.

A real training step records which experts each token chose, and the experts' gradients; a second one shows which rows
a capacity drops. Two longer runs show the load of the experts without and with a balance loss. In the broken runs, an
expert's gradient is divided by the number of its own rank's micro-batches.
"""

from minidist.show.demos.expert_parallel import balance, story
from minidist.show.demos.expert_parallel.run import (
    BUG,
    EXPERTS_OF_RANK,
    config_of,
    layout_of,
    step_of,
    train_too_large,
    train_watched,
)
from minidist.show.demos.shared.runs import WarmRanks, warm_ranks
from minidist.show.stage.animation import Animation
from minidist.show.stage.story import Story
from minidist.train.config import TrainConfig
from minidist.verify.comparison import ONE_PROCESS

MOST = 4  # tokens on a rank
CAPACITY = 1.0  # times an even share of the tokens


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Train a step with ``size`` tokens on each of ``ranks`` ranks, and longer runs without and with a balance loss."""
    with warm_ranks() as warm:
        log, routes = _step(warm, "routes", config_of(ranks, size, seed))
        _, capacity = _step(warm, "capacity", config_of(ranks, size, seed, CAPACITY))
        loads, wrong = balance.loads_of(warm, ranks, seed)
    even = [story.balance(loads, loads), story.balance(wrong, loads, BUG)]
    title = "Expert parallelism: tokens travel to their experts and come home"
    return Animation("ep", title, (*routes, *even, *capacity), log)


def _step(warm: WarmRanks, name: str, config: TrainConfig) -> tuple[list, list[Story]]:
    """Train a step without and with the bug; return the ranks' logs of the right one, and both stories."""
    layout = layout_of(config.experts // EXPERTS_OF_RANK)
    one = step_of(warm.train(config, ONE_PROCESS, train_watched, trace=True))
    run, proof = warm.train_proved(config, layout, train_watched)
    bad, harm = warm.train_broken(config, layout, train_too_large)
    stories = [story.routes(name, step_of(run), one, "", proof), story.routes(name, step_of(bad), one, BUG, harm)]
    return [rank.log for rank in run.ranks], stories
