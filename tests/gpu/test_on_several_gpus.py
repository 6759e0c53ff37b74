"""On a machine with several real GPUs: ``pytest tests/gpu/test_on_several_gpus.py``. Skipped elsewhere.

A GPU for each rank, collectives by NCCL: results are NumPy's, layouts end on one fingerprint, a failing rank ends all.
"""

from dataclasses import replace

import pytest
from test_nccl import MOVED, check_all, computes_meanwhile, not_a_number, one_fails

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
    pytest.skip(f"{GPUS} GPU; NCCL: {nccl.available}. Ranks on GPUs of their own need two", allow_module_level=True)

CONFIG = TrainConfig(layers=2, heads=4, width=64, context=32, steps=5, backend="cupy")
LAYOUTS = ("dp=2", "dp=2,zero=1", "dp=2,zero=2", "dp=2,zero=3", "tp=2", "tp=2,sp=1", "pp=2", "dp=2,tp=2", "dp=4,zero=3")


def on_gpus(world, function, *arguments):
    backend.use("cupy", world.local_rank)
    md.find_gpus(world)
    return function(world, *arguments)


def test_results_are_numpys_in_every_dtype_also_in_place_and_a_nan_outlives_max(ranks):
    for size in (size for size in (2, 3, 4, 8) if size <= GPUS):
        assert ranks(size).run(on_gpus, check_all, MOVED, (0, 1, 2, 5, 1021)) == [[]] * size
    assert ranks(2).run(on_gpus, not_a_number) == ["[1.0, nan, 3.0]"] * 2


def test_layouts_have_the_bits_of_one_process_and_a_run_in_float32_sums_repeats(ranks):
    expected = run(ranks(1), CONFIG, Layout()).fingerprint
    layouts = [layout for layout in map(Layout.parse, LAYOUTS) if layout.world_size <= GPUS]
    wrong = [str(one) for one in layouts if run(ranks(one.world_size), CONFIG, one).fingerprint != expected]
    config = replace(CONFIG, reduce_dtype="float32")
    once, again = (run(ranks(2), config, Layout(dp=2)).fingerprint for _ in range(2))
    assert wrong == [] and once == again


@pytest.mark.parametrize("stops", [True, False])
def test_a_failing_rank_ends_those_that_wait_for_a_gpu(ranks, stops):
    with pytest.raises(md.RankFailed, match="rank 1 of 2 failed: ValueError: no such shard"):
        ranks(2).run(on_gpus, one_fails, stops)


def test_an_asynchronous_collective_does_not_keep_a_gpu_from_computing(ranks):
    ranks(2).run(on_gpus, computes_meanwhile)
