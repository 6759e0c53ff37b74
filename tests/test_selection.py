"""Which tests run: without --all the long ones are left out, and that is said."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from choosing import long

from minidist.comm.transports.cores import cores
from minidist.course.answers import ROOT

FILE = "tests/parallel/test_formulas.py"
TEST = f"{FILE}::test_bytes_and_memory_are_those_of_the_formulas"
SHORT, LONG = f"{TEST}[two ranks]", f"{TEST}[all]"
ONLY_LONG = "tests/test_chapters.py", "05_zero"  # a file, and a word in the names of its long tests alone
GRADER = "tests/exercises/test_ch00_walls.py"
LIMIT = 300  # seconds for one run of pytest


def run_pytest(*arguments: str, environment: dict | None = None) -> list[str]:
    """The lines that pytest prints."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT)
    return result.stdout.splitlines()


def said(lines: list[str]) -> bool:
    return any(line.endswith("long tests left out; pytest --all runs them") for line in lines)


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ((FILE,), {SHORT}), long((LONG,), {LONG}), long((FILE, "--all", "--fresh"), {SHORT, LONG}),
        long((FILE, "--all", "--fresh", "-m", "long"), {LONG}),
    ],
)  # fmt: skip
def test_which_are_chosen(arguments, names):
    lines = run_pytest("--collect-only", *arguments)
    assert {SHORT, LONG} & set(lines) == names
    assert said(lines) == (arguments == (FILE,))


@pytest.mark.long
def test_the_first_test_of_each_exercise_is_short_and_what_needs_a_browser_is_long():
    short, everything = (
        [line for line in run_pytest("--collect-only", GRADER, *more) if line.startswith(GRADER)]
        for more in ((), ("--all", "--fresh"))
    )
    tasks = [test.split("::")[1] for test in everything]
    assert [test.split("::")[1] for test in short] == list(dict.fromkeys(tasks)) and set(short) < set(everything)
    assert not any("test_the_page" in line for line in run_pytest("--collect-only", "tests/show/test_live.py"))


@pytest.mark.long
def test_without_arguments_all_cores_work_and_tell_how_many_they_left_out():
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    file, word = ONLY_LONG
    lines = run_pytest("-vv", "-o", f"testpaths={file}", "-k", word)
    assert said(lines) and any(f"{cores()}/{cores()} workers" in line for line in lines), lines


@pytest.mark.long
def test_a_worker_that_crashes_ends_the_tests_it_shared(tmp_path):
    pytest.importorskip("xdist", reason="pytest-xdist is not installed")
    for name in "abcdefgh":  # enough files for a worker that would be started again
        crash = "import os; os.abort()" if name == "c" else "pass"
        (tmp_path / f"test_{name}.py").write_text(f"def test_1(): pass\n\ndef test_2(): {crash}\n")
    here = Path(__file__).parent
    (tmp_path / "conftest.py").symlink_to(here / "conftest.py")
    lines = run_pytest("-o", f"testpaths={tmp_path}", environment=os.environ | {"PYTHONPATH": str(here)})
    assert any("crashed while running" in line and "test_c.py::test_2" in line for line in lines), lines
    assert "1 failed" in lines[-1], lines
