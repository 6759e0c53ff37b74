"""The benchmark of transports runs: each engine that is installed has a column, and every time is positive."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "transports.py"
ENGINES = ("shared memory", "minidist on MPI", "MPI's own", "Gloo")


@pytest.mark.long
def test_every_engine_that_is_installed_is_measured():
    command = [sys.executable, SCRIPT, "--ranks", "2", "--sizes", "8", str(1 << 20), "--rounds", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    left_out = re.findall(r"^(.*?): left out \(", done.stdout, re.MULTILINE)
    for operation in ("all-reduce", "ping-pong"):
        table = done.stdout.split(f"{operation}, 2 ranks")[1]
        measured = [engine for engine in ENGINES if engine in table.splitlines()[2]]
        assert measured == [engine for engine in ENGINES if engine not in left_out]
        for size in ("8", "1,048,576"):
            cells = re.findall(r"([\d,.]+) \(([\d,.]+)\)", re.search(rf"^│ +{size} │.*$", table, re.MULTILINE)[0])
            assert len(cells) == len(measured)
            assert all(float(value.replace(",", "")) > 0 for value, _ in cells)
            assert cells[0][1] == "1.00"
