"""The library on ranks with GPUs of their own, on the stand-in: NumPy's bits, and no collective in host memory."""

from dataclasses import replace

import pytest
from choosing import long
from own_gpus import with_gpus
from test_on_the_standin import (
    BATCHES,
    CHUNKED,
    COUNTS,
    LOSS,
    NORM,
    PLAIN,
    SMALL,
    SPARSE,
    batches,
    crossings_of_a_step,
)

from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import Run, run, train_rank
from minidist.verify.comparison import agrees
from minidist.verify.matrix import covering_set, every_combination


def run_on_gpus(device_ranks, config: TrainConfig, layout: Layout, gpus: int | None = None) -> Run:
    """A run of the stand-in on so many GPUs, one for each rank by default."""
    size = layout.world_size

    def rank_function(world, *arguments):
        return with_gpus(world, gpus or size, train_rank, *arguments)

    return run(device_ranks(size), replace(config, backend="cupy"), layout, rank_function=rank_function)


@pytest.mark.parametrize(
    ("base", "count"),
    [
        pytest.param(SMALL, 1, id="one"),
        long(SMALL, 4, id="four"),
        long(CHUNKED, 2, id="two with context parallelism"),
        long(SPARSE, 2, id="two with experts"),
    ],
)
def test_every_layout_has_numpys_bits(ranks, device_ranks, base, count):
    expected = {}
    for combination in covering_set(every_combination(base, 4))[:count]:
        config = combination.config(base)
        if config not in expected:
            expected[config] = run(ranks(1), config, Layout())
        found = run_on_gpus(device_ranks, config, combination.layout)
        assert agrees(expected[config], found), combination
        assert all(rank.gpu == "stand-in" and rank.by_nccl for rank in found.ranks)


@pytest.mark.parametrize(
    "text",
    [
        "dp=2,sync=delayed",
        long("dp=3,sync=async,arrivals=1+1+3"),
        long("dp=2,sync=local,local_steps=2,fragments=2"),
        *(long(f"dp=2,compress={method}") for method in ("bf16", "topk:0.1", "powersgd:2")),
    ],
)
def test_looser_steps_have_numpys_bits(ranks, device_ranks, text):
    config, layout = replace(PLAIN, steps=3), Layout.parse(text)
    assert agrees(run(ranks(layout.world_size), config, layout), run_on_gpus(device_ranks, config, layout))


@pytest.mark.long
@pytest.mark.parametrize("gpus", [1, 2, 3])
def test_fewer_gpus_than_ranks(ranks, device_ranks, gpus):
    """Groups whose ranks have a GPU each take NCCL, next to groups that do not."""
    config, layout = replace(PLAIN, steps=2), Layout.parse("dp=2,tp=2,sp=1")
    found = run_on_gpus(device_ranks, config, layout, gpus)
    assert agrees(run(ranks(1), config, Layout()), found) and not any(rank.by_nccl for rank in found.ranks)


@pytest.mark.parametrize(
    ("text", "changes", "expected"),
    [
        ("dp=2", {}, LOSS | NORM | batches(BATCHES // 2)),
        long("dp=2,zero=3", {}, LOSS | NORM | batches(BATCHES // 2)),
        long("tp=2,sp=1", {}, LOSS | NORM | batches(BATCHES)),
        long(  # how many rows every expert has, and the counts of all experts
            "dp=2,ep=2",
            {"experts": 4},
            LOSS
            | NORM
            | batches(BATCHES // 2)
            | {("to host", "nn.moe.permutation.__init__"): BATCHES // 2 * 2, **COUNTS},
        ),
        long(  # messages of a pipeline go through host memory
            "pp=2",
            {},
            {("scalar", "parallel.pipeline.run"): 1}
            | NORM
            | batches(BATCHES)
            | {("to host", "comm.point_to_point._isend"): BATCHES}
            | {("to device", "comm.work.wait"): BATCHES},
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_collectives_do_not_cross(device_ranks, text, changes, expected):
    layout, config = Layout.parse(text), replace(PLAIN, backend="cupy", **changes)
    size = layout.world_size
    found = device_ranks(size).run(with_gpus, size, crossings_of_a_step, config, layout)[0]
    assert found == expected
