"""Recomputation with one bug: the recomputed forward has another dropout mask."""

from dataclasses import replace
from unittest.mock import patch

from minidist.comm.group import ProcessGroup
from minidist.nn.random import DropoutRNG
from minidist.nn.recompute import Region
from minidist.show.demos.shared.memory_log import train_logging_memory
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, RunOptions

BUG = "in the last step, the recomputed forward has a different dropout mask"


def train_redrawn(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """Train; everything recomputed in the last step has the dropout of the step after it."""
    right = Region.run_again

    def other(value):
        redrawn = isinstance(value, DropoutRNG) and value.step == config.steps - 1
        return replace(value, step=value.step + 1) if redrawn else value

    def run_again(self) -> None:
        self.inputs = [other(value) for value in self.inputs]
        right(self)

    with patch.object(Region, "run_again", run_again):
        return train_logging_memory(world, config, layout, options)
