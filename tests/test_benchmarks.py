"""Every benchmark that can be small runs to its end. What it measures here means nothing."""

import os
from pathlib import Path

import pytest
from scripts import python

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
SMALL = (
    "attention", "busy_machine --rounds 1", "corruption tp=2 --rounds 1", "data_parallel --size small --rounds 1",
    "experts --steps 10 --rounds 1", "failures", "launch", "mfu dp=1 --rounds 1 --width 64",
    "pipeline --rounds 1 --micro-batches 2", "recompute --rounds 1 --steps 1", "roofline",
    "stragglers --rounds 1 --steps 8", "tensor_parallel --width 128 --rounds 1", "two_level --ranks 8",
)  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("command", SMALL)
def test_a_benchmark_runs_to_its_end(command, tmp_path):
    name, *flags = command.split()
    path = os.pathsep.join([str(BENCHMARKS.parent), os.environ.get("PYTHONPATH", "")])
    ended = python(str(BENCHMARKS / f"{name}.py"), *flags, cwd=tmp_path, env=os.environ | {"PYTHONPATH": path})
    assert ended.returncode == 0, ended.stderr
