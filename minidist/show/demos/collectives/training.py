"""Training with a broken collective: the losses, and how far each rank's weights drift from the right ones."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from minidist import overrides
from minidist.comm.group import ProcessGroup
from minidist.nn.optim.optimizers import warmup_cosine
from minidist.show.demos.shared.runs import WarmRanks
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.share import Share
from minidist.train.step import train_step
from minidist.verify.comparison import ONE_PROCESS

MODEL = TrainConfig(layers=2, heads=4, width=32, context=16, global_batch=16, micro_batch=1, steps=2)
LONGER = 20  # steps, for the picture


@dataclass(frozen=True)
class Harm:
    """Run with the bug, next to the single-process run.

    Args:
        right, wrong: loss of each step, without the bug and with it: (steps,).
        drift: (ranks, steps + 1): distance of each rank's weights from the right ones, before training and after each
            step, as a share of the distance that the right ones move in the whole run.
    """

    right: np.ndarray
    wrong: np.ndarray
    drift: np.ndarray


def harm(trains_on: tuple[Callable, Callable], warm: WarmRanks, ranks: int, seed: int) -> Harm:
    """Train for ``LONGER`` steps, without the bug in one process and with it on all ranks.

    Raises:
        RuntimeError: if the bug does not change the weights.
    """
    layout_of, function = trains_on
    config = replace(MODEL, seed=seed, steps=LONGER)
    with warm(1) as cluster:
        ((right, weights),) = cluster.run(_losses_and_weights, config, ONE_PROCESS, timeout=120)
    with warm(ranks) as cluster:
        found = cluster.run(partial(_overridden, function, _losses_and_weights), config, layout_of(ranks), timeout=120)
    moved = np.linalg.norm(weights[-1] - weights[0])
    drift = [np.linalg.norm(one - weights, axis=1) / moved for _, one in found]
    if not np.any(drift):
        raise RuntimeError(f"the bug injected in {layout_of(ranks)} changes no bit: choose another size or seed")
    return Harm(np.array(right), np.array(found[0][0]), np.stack(drift))


def _overridden(function: Callable, rank_function: Callable, world: ProcessGroup, *args):
    """Run a rank's function with a broken algorithm in place of the library's."""
    overrides.override({function.__name__: function})
    try:
        return rank_function(world, *args)
    finally:
        overrides.override({})


def _losses_and_weights(world: ProcessGroup, config: TrainConfig, layout: Layout) -> tuple[list, np.ndarray]:
    """Return the loss of each step, and the rank's weights at first and after each step: (steps + 1, parameters)."""
    share = Share.of(world, config, layout)

    def weights() -> np.ndarray:
        return np.concatenate([parameter.data.ravel() for parameter in share.gpt.parameters()]).astype(np.float64)

    losses, seen = [], [weights()]
    for step in range(config.steps):
        rate = warmup_cosine(step, config.steps, config.lr, config.warmup, config.lr / 10)
        batch = share.batch(step, share.model.micro_batches)
        losses.append(train_step(share.model, share.optimizer, share.scaler, batch, rate, config.clip, lambda: None))
        seen.append(weights())
    return losses, np.stack(seen)
