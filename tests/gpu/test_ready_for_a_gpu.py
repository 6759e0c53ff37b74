"""What waits for a machine with a GPU runs through: its tests on the stand-in for CuPy, its benchmark on the CPU."""

import json
import os
import subprocess
import sys

import pytest
from choosing import long

from minidist.course.answers import ROOT

LIMIT = 600  # seconds


OF_ARRAYS = "row_depends or columns or formats or atomic or stages or background or keep_24_bits or products and 33"
OF_RUNS = "near and tiled or fp8 and ep or odd or short"


@pytest.mark.parametrize("which", [OF_ARRAYS, long("products"), long(OF_RUNS)])
def test_its_tests_run_on_the_standin(compiler, which):
    path = os.pathsep.join([str(ROOT / "tests" / "gpu" / "standin"), str(ROOT)])
    command = [sys.executable, "-m", "pytest", "tests/gpu/test_on_a_gpu.py", "-k", which, "-p", "no:cacheprovider"]
    environment = os.environ | {"PYTHONPATH": path}
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT, env=environment)
    assert result.returncode == 0 and "skipped" not in result.stdout, result.stdout + result.stderr


@pytest.mark.long
def test_the_benchmark_writes_a_report(tmp_path):
    """A case that fails on this machine does not keep the rest from being measured."""
    pytest.importorskip("torch", reason="the benchmark compares with PyTorch")
    command = [sys.executable, "benchmarks/gpu.py", "--backend=numpy", "--width=64", "--turns=1"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command.append(f"--report={tmp_path}")
    subprocess.run(command, check=True, timeout=LIMIT, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL)
    ends = (tmp_path / "ends.txt").read_text(encoding="utf-8").splitlines()
    assert len(ends) == 6 and all("exit status 0" in line for line in ends if line.startswith("width"))
    for precision in ("fp32", "bf16"):
        (found,) = json.loads((tmp_path / f"width64-{precision}.json").read_text(encoding="utf-8"))
        assert found["minidist_ms"] >= found["minidist_host_ms"] > 0 and found["ratio"] > 0
