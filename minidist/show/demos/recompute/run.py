"""Training runs with recomputation, and its cost by formula.

The bug: the recomputed forward has another dropout mask.
"""

from dataclasses import replace
from unittest.mock import patch

from minidist.comm.group import ProcessGroup
from minidist.nn.random import DropoutRNG
from minidist.nn.recompute import Region
from minidist.show.demos.shared.memory_log import train_logging_memory
from minidist.show.demos.shared.runs import check_width, heads_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RankResult, RunOptions


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    check_width(size, 4, 256)
    return TrainConfig(
        layers=4,
        heads=heads_of(size),
        width=size,
        context=64,
        global_batch=4 * ranks,
        micro_batch=4,
        steps=2,
        dropout=0.1,
        precision="bf16",
        seed=seed,
    )


def recomputed_share(config: TrainConfig, mode: str) -> float:
    """FLOPs that a mode adds, as a share of those of a step's forward and backward."""
    tokens, h = config.micro_batch * config.context, config.width
    core = 4 * tokens * config.context * h
    block = 24 * tokens * h * h + core
    head = 2 * tokens * h * config.model.vocab
    return {"none": 0, "selective": core, "full": block}[mode] * config.layers / (3 * (config.layers * block + head))


BUG = "in the last step, the recomputed forward has a different dropout mask"


def train_redrawn(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """Train with the bug: everything recomputed in the last step has the dropout mask of the step after it."""
    right = Region.run_again

    def other(value):
        redrawn = isinstance(value, DropoutRNG) and value.step == config.steps - 1
        return replace(value, step=value.step + 1) if redrawn else value

    def run_again(self) -> None:
        self.inputs = [other(value) for value in self.inputs]
        right(self)

    with patch.object(Region, "run_again", run_again):
        return train_logging_memory(world, config, layout, options)
