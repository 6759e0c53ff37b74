"""Expert parallelism: tokens travel to the ranks that have their experts, and come home.

A real training step records which experts each token chose, and the experts' gradients; another one, what a capacity
drops. Two longer runs show the load of the experts without and with a balance loss. In the broken runs, an expert's
gradient is divided by the number of its own rank's micro-batches.
"""

from collections.abc import Callable

from minidist.show.demos.expert_parallel import balance, balance_scene, lecture, scene
from minidist.show.demos.expert_parallel.bug import BUG, train_too_large
from minidist.show.demos.expert_parallel.run import (
    EXPERTS_OF_RANK,
    Step,
    config_of,
    layout_of,
    step_of,
    train_watched,
)
from minidist.show.demos.shared.runs import WarmRanks, diverges, warm_ranks
from minidist.show.player.animation import Animation
from minidist.show.player.scene import Scene
from minidist.train.config import TrainConfig
from minidist.verify.comparison import ONE_PROCESS

MOST = 4  # tokens on a rank
CAPACITY = 1.0  # times an even share of the tokens


def animation(ranks: int, size: int, seed: int) -> Animation:
    """A step on ``ranks`` ranks with ``size`` tokens on each, and a longer run without and with a balance loss."""
    with warm_ranks() as warm:
        log, routes, broken = _step(warm, "routes", config_of(ranks, size, seed), "broken", lecture.routes)
        config = config_of(ranks, size, seed, CAPACITY)
        _, capacity, broken_capacity = _step(warm, "capacity", config, "broken capacity", lecture.capacity)
        loads, wrong_loads = balance.loads_of(warm, ranks, seed)
    scenes = routes, lecture.balance(balance_scene.scene_of(loads), next(iter(loads.values()))), capacity
    unbalanced = lecture.broken_balance(balance_scene.scene_of(wrong_loads, loads), ranks)
    title = "Expert parallelism: tokens travel to their experts and come home"
    return Animation("ep", title, scenes, broken, BUG, log, (unbalanced, broken_capacity))


def _step(
    warm: WarmRanks, name: str, config: TrainConfig, broken: str, asked: Callable[[Scene, Step], Scene]
) -> tuple[list, Scene, Scene]:
    """The ranks' logs of a step, its scene, and that of the same step with the bug."""
    layout = layout_of(config.experts // EXPERTS_OF_RANK)
    reference = step_of(warm.train(config, ONE_PROCESS, train_watched, trace=True))
    run = warm.train(config, layout, train_watched, trace=True)
    proof = warm.prove(config, run)
    bad = warm.train(config, layout, train_too_large, trace=True)
    proof_of_harm = diverges(warm.first_difference(config, bad, train_too_large))
    step, wrong = step_of(run), step_of(bad)
    right = asked(scene.of_step(name, step, reference, scene.verdict(step, proof)), step)
    harm = scene.harm(wrong, reference, proof_of_harm)
    other = lecture.broken(scene.of_step(broken, wrong, reference, harm, twin=name), layout.ep)
    return [rank.log for rank in run.ranks], right, other
