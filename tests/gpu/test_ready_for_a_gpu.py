"""What waits for a machine with a GPU runs through: its tests on the stand-in for CuPy, its benchmark on the CPU."""

import json
import os
import subprocess
import sys

import pytest

from minidist.course.answers import ROOT

LIMIT = 600  # seconds


def on_the_standin(which: str) -> str:
    path = os.pathsep.join([str(ROOT / "tests" / "gpu" / "standin"), str(ROOT)])
    command = [sys.executable, "-m", "pytest", "tests/gpu/test_on_a_gpu.py", "-k", which, "-p", "no:cacheprovider"]
    result = subprocess.run(
        command, capture_output=True, text=True, timeout=LIMIT, cwd=ROOT, env=os.environ | {"PYTHONPATH": path}
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_its_first_tests_run_on_the_standin():
    assert "skipped" not in on_the_standin("sum or product or formats or stages or background or keep_24_bits")


@pytest.mark.long
def test_its_other_tests_run_on_the_standin():
    assert "skipped" not in on_the_standin("repeats or near or odd and dp or fp8 and tp or chunks and cp")


@pytest.mark.long
def test_the_benchmark_writes_a_report(tmp_path):
    """What fails on this machine does not keep the rest from being measured."""
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
