"""Rebalancing by times that nobody has measured: what is dealt out can be foretold, and changes often."""

from unittest import mock

import numpy as np

from minidist.train import trainer
from minidist.train.resilience.rebalance import Rebalance
from minidist.train.trainer import train_rank


def made_up_seconds(rank: int, step: int) -> float:
    """Every rank has another time in every step, also ranks that work on the same micro-batches: 1, 3 or 20."""
    return float(np.random.default_rng([rank, step]).choice([1, 3, 20]))


class MadeUp(Rebalance):
    """Rebalances after every step."""

    def __init__(self, *arguments):
        super().__init__(*arguments, every=1)
        self.step = 0

    def note(self, seconds):
        super().note(made_up_seconds(self.world.rank, self.step))
        self.step += 1


def train_by_made_up_times(*arguments):
    """``train_rank``, for a run with ``RunOptions(rebalance=True)``."""
    with mock.patch.object(trainer, "Rebalance", MadeUp):
        return train_rank(*arguments)
