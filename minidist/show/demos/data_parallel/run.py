"""The model and the layouts that the demonstration of data parallelism trains."""

from dataclasses import replace

from minidist.show.demos.shared.widths import check_width, heads_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

BUCKETS = 6  # approximately


def config_of(ranks: int, size: int, seed: int) -> TrainConfig:
    check_width(size, 8, 512)
    return TrainConfig(
        layers=4,
        heads=heads_of(size),
        width=size,
        context=32,
        global_batch=4 * ranks,  # one micro-batch per rank, so that all of backward can hide communication
        micro_batch=4,
        steps=3,
        seed=seed,
        clip=100.0,  # so high that a wrong gradient changes no other parameter
    )


def layouts_of(ranks: int, elements: int) -> dict[str, Layout]:
    """Name of the scene -> layout, for a model with ``elements`` elements."""
    ring = Layout(dp=ranks, algorithm="ring")
    bucketed = replace(ring, sync="bucketed", bucket_mb=8 * elements / BUCKETS / 2**20)  # of float64 gradients
    return {
        "overlapped": replace(bucketed, sync="overlapped"),
        "bucketed": bucketed,
        "naive": replace(ring, sync="naive"),
    }
