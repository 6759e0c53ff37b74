"""The failures of the conformance suite, each in a job of its own."""

import re
import sys

import pytest
from mpiexec import ROOT, needs_mpi, run

FAILING = ROOT / "tests" / "comm" / "conformance" / "failing.py"
sys.path.append(str(FAILING.parent))

from failing import FAILURES, SIZE  # noqa: E402

SHORT = "raises"

pytestmark = needs_mpi


@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n == SHORT else pytest.mark.long) for n in (run.__name__ for run in FAILURES)]
)
def test_the_error_says_what_each_rank_did(tmp_path, name):
    status, output = run(tmp_path, SIZE, sys.executable, FAILING, name)
    assert status != 0
    patterns = next(patterns for function, patterns in FAILURES.items() if function.__name__ == name)
    for pattern in patterns:
        assert re.search(pattern, output), f"{pattern} is not in:\n{output}"
    assert "job_cluster.py" not in output  # only the user's own frames
