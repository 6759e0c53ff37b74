"""The benchmark of transports runs: each engine that is installed has a column."""

import re
import subprocess
import sys

import pytest
from mpiexec import ROOT


@pytest.mark.long
def test_every_engine_that_is_installed_is_measured():
    command = [sys.executable, ROOT / "benchmarks" / "transports.py", "--ranks=2", "--sizes=8", "--rounds=1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    left_out = re.findall(r"^(.*?): left out \(", done.stdout, re.MULTILINE)
    for table in done.stdout.split(", 2 ranks")[1:]:
        measured = [n for n in ("shared memory", "minidist on MPI", "MPI's own", "Gloo") if n in table.splitlines()[2]]
        assert len(measured) == 4 - len(left_out)
        assert len(re.findall(r"[\d.]+ \(([\d,.]+)\)", re.search(r"^│ +8 │.*$", table, re.MULTILINE)[0])) == len(
            measured
        )
