"""On a machine with several real GPUs: ``pytest tests/gpu/test_on_several_gpus.py``. Skipped elsewhere.

A GPU for each rank, collectives by NCCL: results are NumPy's, layouts end on one fingerprint, a failing rank ends all.
"""

import time
from dataclasses import replace

import numpy as np
import pytest
from test_nccl import MOVED, SECONDS, check_all, not_a_number, one_fails

import minidist as md
from minidist import backend
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

try:
    GPUS = backend.find("cupy").cuda.runtime.getDeviceCount()
    from cupy.cuda import nccl
except RuntimeError as error:
    pytest.skip(str(error), allow_module_level=True)
if GPUS < 2 or not nccl.available:
    pytest.skip(
        f"{GPUS} GPU and {'' if nccl.available else 'no '}NCCL: two ranks on GPUs of their own need two and NCCL",
        allow_module_level=True,
    )

SIZES = [size for size in (2, 3, 4, 8) if size <= GPUS]  # ranks
CONFIG = TrainConfig(layers=2, heads=4, width=64, context=32, steps=5, backend="cupy")
LAYOUTS = ("dp=2", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3", "tp=2", "tp=2,sp=1", "pp=2", "dp=2,tp=2", "dp=4,zero=3")


def on_gpus(world, function, *arguments):
    backend.use("cupy", world.local_rank)
    md.find_gpus(world)
    return function(world, *arguments)


def test_results_are_numpys_in_every_dtype_also_in_place(ranks):
    for size in SIZES:
        assert ranks(size).run(on_gpus, check_all, MOVED, (0, 1, 2, 5, 1021)) == [[]] * size


def test_a_nan_outlives_max(ranks):
    for found in ranks(2).run(on_gpus, not_a_number):
        assert np.isnan(found[1])


@pytest.mark.parametrize("text", [text for text in LAYOUTS if Layout.parse(text).world_size <= GPUS])
def test_layouts_have_the_bits_of_one_process(ranks, text):
    layout = Layout.parse(text)
    expected = run(ranks(1), CONFIG, Layout())
    assert run(ranks(layout.world_size), CONFIG, layout).fingerprint == expected.fingerprint


def test_a_run_in_float32_sums_repeats(ranks):
    config = replace(CONFIG, reduce_dtype="float32")
    first = run(ranks(2), config, Layout(dp=2)).fingerprint
    assert run(ranks(2), config, Layout(dp=2)).fingerprint == first


@pytest.mark.parametrize("stops", [True, False])
def test_a_failing_rank_ends_those_that_wait_for_a_gpu(ranks, stops):
    started = time.monotonic()
    with pytest.raises(md.RankFailed, match="rank 1 of 2 failed: ValueError: no such shard"):
        ranks(2).run(on_gpus, one_fails, stops)
    assert time.monotonic() - started < SECONDS


def compute_beside(world) -> tuple[float, float]:
    """Seconds of a large all-reduce and of products: one after the other, and at the same time."""
    from minidist.backend import xp

    x, a = xp.ones(1 << 26, np.float32), xp.ones((4096, 4096), np.float32)

    def timed(async_op: bool) -> float:
        xp.cuda.Device().synchronize()
        md.barrier(world)
        started = time.perf_counter()
        work = md.all_reduce(x, group=world, async_op=async_op)
        for _ in range(10):
            a @ a
        if work is not None:
            work.wait()
        xp.cuda.Device().synchronize()
        return time.perf_counter() - started

    timed(False), timed(True)
    return min(timed(False) for _ in range(5)), min(timed(True) for _ in range(5))


def test_an_asynchronous_collective_overlaps_with_computing(ranks):
    apart, together = max(ranks(2).run(on_gpus, compute_beside))
    print(f"all-reduce of 256 MiB and ten products: {apart * 1e3:.1f} ms apart, {together * 1e3:.1f} ms together")
    assert together < apart
