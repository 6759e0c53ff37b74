"""The conformance suite, on the processes of an MPI job."""

import re
import sys

import pytest
from mpiexec import ROOT, TWO_NODES, needs_mpi, run

SUITE = ROOT / "tests" / "comm" / "conformance"
MATRIX = f"{SUITE / 'test_collectives.py'}::test_all_collectives_agree_with_integers"
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


@pytest.mark.parametrize(
    ("environment", "nodes", "left_out"),
    [(ONE_NODE, (0, 0, 0, 0, 0), ("1-16", "4-6")), (TWO_NODES, (0, 1, 0, 1, 0), ("1-16", "2-16"))],
    ids=["one node", "two nodes"],
)
def test_the_suite_on_5_ranks(tmp_path, environment, nodes, left_out):
    shorter = [f"--deselect={MATRIX}[{case} dtypes]" for case in left_out]
    status, output = run(
        tmp_path,
        5,
        sys.executable,
        SUITE / "on_job.py",
        *temporary(tmp_path),
        *shorter,
        environment=environment,
        limit=SECONDS,
    )
    assert status == 0, output
    assert f"on nodes {nodes}" in output
    done, skipped = passed(output)
    assert done > 90 and skipped < 15, output  # skipped are those of 6, 7 and 8 ranks


@pytest.mark.long
@pytest.mark.parametrize("environment", [ONE_NODE, TWO_NODES], ids=["one node", "two nodes"])
def test_the_whole_suite_on_8_ranks(tmp_path, environment):
    status, output = run(
        tmp_path,
        8,
        sys.executable,
        SUITE / "on_job.py",
        *temporary(tmp_path),
        "--all",
        environment=environment,
        limit=6 * SECONDS,
    )
    assert status == 0, output
    done, skipped = passed(output)
    assert done > 110 and skipped == 0, output
