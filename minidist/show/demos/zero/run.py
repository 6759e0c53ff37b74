"""The model and the layouts that the demonstration of ZeRO trains."""

from minidist.nn.layers import Module
from minidist.show.demos.shared.widths import check_width, heads_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    check_width(size, 4, 256)
    return TrainConfig(
        layers=6, heads=heads_of(size), width=size, context=16, global_batch=ranks, micro_batch=1, steps=3, seed=seed
    )


def layouts_of(ranks: int) -> list[Layout]:
    """Plain data parallelism, and stages 1 to 3."""
    return [Layout(dp=ranks, zero=stage) for stage in range(4)]


def elements_of(module: Module) -> int:
    return sum(parameter.size for parameter in module.parameters())
