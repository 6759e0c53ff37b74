"""ZeRO with one bug: once, the updated parameters of one block are not gathered."""

from itertools import count
from unittest.mock import patch

from minidist.comm.group import ProcessGroup
from minidist.parallel.zero import ZeroStage1
from minidist.show.demos.shared.memory_log import train_logging_memory
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, RunOptions

BUG = "after one step, the last block's new parameters are not gathered: ranks continue with stale ones"


def train_stale(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """After the second-to-last step, the parameters of the last block are not gathered."""
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
