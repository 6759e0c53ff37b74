"""The tests that know no transport, on the processes of an MPI job: one job for all of them."""

import re
import sys

import pytest
from mpiexec import LIMIT, ROOT, TWO_NODES, Job, needs_mpi

pytestmark = needs_mpi


@pytest.mark.long
@pytest.mark.parametrize(
    ("size", "environment", "nodes", "more"),
    [(5, TWO_NODES, "(0, 1, 0, 1, 0)", ()), (8, {}, "(0, 0, 0, 0, 0, 0, 0, 0)", ("--all",))],
    ids=["5 ranks on two nodes", "8 ranks"],
)
def test_the_suite_passes_on_mpi(tmp_path, size, environment, nodes, more):
    """pytest in the job keeps its files where the job must not leave none."""
    command = sys.executable, ROOT / "tests" / "comm" / "on_job.py", f"--basetemp={tmp_path / 'inside'}", *more
    status, output = Job(tmp_path, size, *command, environment=environment).ended(10 * LIMIT)
    assert status == 0 and f"conformance on {size} ranks, on nodes {nodes}" in output, output
    counts = re.findall(r"(\d+) (\w+)", re.findall(r"^=+ (.*) in [\d.]+s.*=+$", output, re.MULTILINE)[-1])
    found = {word: int(count) for count, word in counts}
    assert found.keys() <= {"passed", "deselected"} and found["passed"] > 15, output
