"""ZeRO with one bug: once, the updated parameters of one block are not gathered."""

import time
from itertools import count
from unittest.mock import patch

import numpy as np

from minidist import trace
from minidist.comm.group import ProcessGroup
from minidist.parallel.zero import Unit, ZeroStage1, ZeroStage3
from minidist.show.demos.shared.memory_log import train_logging_memory
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, RunOptions

STALE = "stale parameters"  # name of an event: the time during which a rank holds them
BUG = "after one step, the last block's new parameters are not gathered: ranks continue with stale ones"


def train_stale(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """Train with the bug: after the second-to-last step, the parameters of the last block are not gathered."""
    right, steps = ZeroStage1.sync_params, count()

    def sync_params(self) -> None:
        if next(steps) != config.steps - 2:
            return right(self)
        everything = self.units
        self.units = [unit for unit in everything if unit is not self.blocks[-1]]
        right(self)
        self.units = everything

    with patch.object(ZeroStage1, "sync_params", sync_params):
        return train_logging_memory(world, config, layout, options)


def train_stale_sharded(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """Train in stage 3 with the bug: in the last step, a rank uses the last block's parameters of the step before.

    It holds as much, for as long, as without the bug. A ``STALE`` event says when it holds the stale parameters.
    """
    unshard, reshard, steps = ZeroStage3.unshard, Unit.reshard, count()
    before: dict[str, np.ndarray] = {}
    since: dict[Unit, int] = {}
    step = 0

    def sync_params(self: ZeroStage3) -> None:
        nonlocal step
        step = next(steps) + 1

    def unshard_stale(self: ZeroStage3, unit: Unit, following: Unit | None) -> None:
        unshard(self, unit, following)
        if unit is not self.blocks[-1]:
            return
        if step == config.steps - 2:
            before["full"] = unit.full.copy()
        elif step == config.steps - 1:
            unit.full[...] = before["full"]
            since.setdefault(unit, time.perf_counter_ns())

    def reshard_stale(self: Unit) -> None:
        reshard(self)
        if self in since and trace.log is not None:
            trace.record(trace.Event(STALE, "compute", since.pop(self), time.perf_counter_ns()))

    with (
        patch.object(ZeroStage3, "sync_params", sync_params),
        patch.object(ZeroStage3, "unshard", unshard_stale),
        patch.object(Unit, "reshard", reshard_stale),
    ):
        return train_logging_memory(world, config, layout, options)
