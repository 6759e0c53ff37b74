"""The conformance suite, on the processes of an MPI job."""

import re
import sys

import pytest
from mpiexec import ROOT, TWO_NODES, needs_mpi, run

SUITE = ROOT / "tests" / "comm" / "conformance"
MATRIX = [  # the longest tests, each a matrix of all collectives: a short run has one of them
    *(f"test_all_collectives_agree_with_integers[{case} dtypes]" for case in ("1-16", "2-16", "3-6", "4-6")),
    "test_collectives_on_subgroups[5]",
]
ONE_NODE, SECONDS = {}, 300

pytestmark = needs_mpi


def temporary(tmp_path) -> list[str]:
    """Where pytest in the job keeps its files: not where the job must leave none."""
    return [f"--basetemp={tmp_path / 'inside'}"]


def passed(output: str) -> tuple[int, int]:
    """How many tests passed and were skipped; fails where another word is among pytest's counts."""
    counts = re.findall(r"(\d+) (\w+)", re.findall(r"^=+ (.*) in [\d.]+s.*=+$", output, re.MULTILINE)[-1])
    found = {word: int(count) for count, word in counts}
    assert found.keys() <= {"passed", "skipped", "deselected"}, output
    return found["passed"], found.get("skipped", 0)


@pytest.mark.long
@pytest.mark.parametrize(
    ("environment", "nodes", "matrix"),
    [(ONE_NODE, (0, 0, 0, 0, 0), "subgroups[5]"), (TWO_NODES, (0, 1, 0, 1, 0), "[4-6 dtypes]")],
    ids=["one node", "two nodes"],
)
def test_the_suite_on_5_ranks(tmp_path, environment, nodes, matrix):
    """On two nodes the matrix is of 4 ranks, as many on each: hierarchical algorithms run, too."""
    others = [test for test in MATRIX if not test.endswith(matrix)]
    shorter = [f"--deselect={SUITE / 'test_collectives.py'}::{test}" for test in others]
    command = (sys.executable, SUITE / "on_job.py", *temporary(tmp_path), *shorter)
    status, output = run(tmp_path, 5, *command, environment=environment, limit=SECONDS)
    assert status == 0, output
    assert f"on nodes {nodes}" in output
    done, skipped = passed(output)
    assert done > 85 and skipped < 15, output  # skipped are those of 6, 7 and 8 ranks


@pytest.mark.long
def test_the_whole_suite_on_8_ranks(tmp_path):
    command = (sys.executable, SUITE / "on_job.py", *temporary(tmp_path), "--all")
    status, output = run(tmp_path, 8, *command, limit=6 * SECONDS)
    assert status == 0, output
    done, skipped = passed(output)
    assert done > 110 and skipped == 0, output
