"""The model that the demonstrations of tensor and sequence parallelism train."""

from minidist.show.demos.shared.widths import check_width
from minidist.train.config import TrainConfig


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    """A model whose heads and tokens can be divided by the number of ranks."""
    check_width(size, 8, 512)
    width = _multiple(ranks, size)
    return TrainConfig(
        layers=2,
        heads=next(heads for heads in (2 * ranks, ranks) if width % heads == 0),
        width=width,
        context=_multiple(ranks, 64),
        global_batch=8,
        micro_batch=8,
        steps=3,
        seed=seed,
        clip=100.0,  # so high that a wrong gradient changes no other parameter
    )


def _multiple(of: int, least: int) -> int:
    return -(-least // of) * of
