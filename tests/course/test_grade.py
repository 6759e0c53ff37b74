"""minidist grade: no submission stops the others, and each gets the points it deserves and a clear remark."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from minidist.cli.main import main
from minidist.course.answers import ROOT, solutions
from minidist.course.grading import grade_submission
from minidist.course.grading.grade_class import write_grades
from minidist.course.grading.grade_submission import Grade
from minidist.course.grading.supervisor import MARK
from minidist.course.stubs import stub_of
from minidist.course.tasks import Task, TaskResult, Verdict

NAME = "ch03_collectives"
SOLUTION = solutions()[NAME].text
TASKS = {"3.2": 2, "3.5": 4, "3.6": 3}  # the tasks graded here and their points
LIMIT = 300  # seconds for one wait
HEART = "    chunks = chunks_of(flat, group.size)\n"  # the first line of task 3.5


def in_3_5(code: str) -> str:
    """The solutions, with code in front of the answer to task 3.5."""
    assert SOLUTION.count(HEART) == 1
    return SOLUTION.replace(HEART, "".join(f"    {line}\n" for line in code.splitlines()) + HEART)


C_LIBRARY = "import ctypes, os\nrun = ctypes.CDLL(None).system\n"  # starts programs in a way that no rule sees
SUBMISSIONS = {  # student -> (the file, points for 3.2, 3.5 and 3.6, a pattern that a remark matches)
    # (what is noticed in a rank, such as a fork or a replaced function, is in test_sandbox.py)
    "hangs_when_loaded": (
        SOLUTION + "\nwhile True:\n    pass\n", (0, 0, 0),
        r"3\.2, 3\.5, 3\.6: .*cannot be loaded: the run did not end"),
    "fork_bomb": (  # its processes double in number 100 times a second, and leave the cores to the other submissions
        in_3_5("import os, time\nwhile True:\n    os.fork()\n    time.sleep(0.01)"), (2, 0, 3),
        r"3\.5: the run did not end within"),
    "calls_the_library": (
        "from minidist.comm.algorithms import all_reduce_ring as theirs\n"
        + in_3_5("return theirs(flat, combine, group)"), (2, 0, 3),
        r"3\.5: LibraryAnswer: the answer calls minidist's own all_reduce_ring"),
    "kills_its_grader": (
        in_3_5("import os, signal\nos.killpg(0, signal.SIGKILL)"), (2, 0, 3), r"3\.5: it ended the grading process"),
    "eats_memory": (in_3_5("hoard = np.empty(5 << 27)"), (2, 0, 3), None),  # 5 GiB that it does not even touch
    "starts_a_crowd": (
        in_3_5(f"{C_LIBRARY}for _ in range(99):\n    run(b'sleep 60 &')"), (2, 0, 3),
        r"3\.5: it exceeded the limit of 64 processes"),
    "spoils_its_ranks": (  # in 3.2; the later tasks are correct and must not suffer
        SOLUTION.replace(
            "    if group.rank == 0:\n        arrived",
            "    import threading, os, signal, numpy.random\n    signal.alarm(2)\n"
            "    threading.Timer(2.0, os._exit, (0,)).start()\n    if group.rank == 0:\n        arrived", 1),
        (2, 4, 3), r"3\.2: leaves threads running"),
    "raises_rubbish": (in_3_5("raise ValueError('\\x1b[2J\\ud83d' + 'x' * 5_000_000)"), (2, 0, 3), None),
    "is_written_elsewhere": (
        "\ufeffimport dataclasses\n" + SOLUTION.replace("\n", "\r\n")
        + "\r\n@dataclasses.dataclass\r\nclass Pair:\r\n    x: 'int' = 1\r\n", (2, 4, 3), None),
    "writes_below_the_stubs": (
        stub_of(SOLUTION) + SOLUTION.partition("import sendrecv")[2] + SOLUTION, (2, 4, 3), None),
}  # fmt: skip
EVIL = "\x1b[2J\x9b31m\n\u202e"  # in names, which are a student's to choose


def left_in(folder: str) -> list[str]:
    """The command lines of submissions' processes whose HOME is in this folder."""
    running = [process.info for process in psutil.process_iter(["environ", "status", "cmdline"])]
    return [
        str(one["cmdline"]) for one in running if one["status"] != psutil.STATUS_ZOMBIE and one["environ"]
        and MARK in one["environ"] and one["environ"].get("HOME", "").startswith(folder)
    ]  # fmt: skip


def dead_segments() -> set[str]:
    """Shared-memory segments of ranks whose parent has ended."""
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    return {name for name in names if name.startswith("minidist-") and not psutil.pid_exists(int(name.split("-")[1]))}


def write_class(place: Path) -> None:
    """Lay out the submissions, and others that lack an answer or cannot be read."""
    for student, (text, _, _) in SUBMISSIONS.items():
        (place / student / "deeper").mkdir(parents=True)
        (place / student / "deeper" / f"{NAME}.py").write_text(text)
    with zipfile.ZipFile(place / "sends_a_zip.zip", "w") as archive:
        archive.writestr(f"homework/{NAME}.py", SOLUTION)
        archive.writestr("homework/../../../conftest.py", "raise SystemExit")
        archive.writestr(f"__MACOSX/homework/._{NAME}.py", "\0\0")
    with zipfile.ZipFile(place / f"ann{EVIL}.zip", "w") as archive:
        archive.writestr(f"ch03{EVIL}.py".replace("\n", ""), "")
        for folder in (f"a{EVIL}", "b"):
            archive.writestr(f"{folder}/{NAME}.py", "")
    (place / "is_no_zip.zip").write_bytes(b"not a zip")
    (place / f"[red]{EVIL}").mkdir()
    (place / f"notes{EVIL}.txt").touch()
    (place / ".DS_Store").touch()


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """All of them, graded in one run."""
    place, temporary = tmp_path_factory.mktemp("course"), tempfile.mkdtemp(prefix="t")
    write_class(place / "in")
    segments, tasks = dead_segments(), [f"--task={task}" for task in TASKS]
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        patch.setenv("COLUMNS", "300")
        patch.setattr(tempfile, "tempdir", temporary)
        status = main(["grade", str(place / "in"), "--out", str(place / "out"), "--jobs", "3", *tasks])
    grades = {grade["student"]: grade for grade in json.loads((place / "out" / "grades.json").read_text())}
    yield SimpleNamespace(
        status=status, grades=grades, place=place, out=place / "out", temporary=temporary, segments=segments,
        shown=out.getvalue(), errors=err.getvalue(),
    )  # fmt: skip
    shutil.rmtree(temporary)


@pytest.mark.long
def test_fair_points_and_a_clear_remark(graded):
    offenders = []
    for student, (_, points, remark) in SUBMISSIONS.items():
        grade = graded.grades[student]
        fair = [one["points"] for one in grade["tasks"].values()] == list(points) and grade["points"] == sum(points)
        clear = any(re.search(remark, one) for one in grade["remarks"]) if remark else grade["remarks"] == []
        if not (fair and clear and grade["of"] == sum(TASKS.values())):
            offenders.append(f"{student}: {grade}")
    assert not offenders, "\n".join(offenders)


@pytest.mark.long
def test_zip_files_missing_answers_tables_and_gradescope(graded):
    assert graded.status == 0 and graded.grades["sends_a_zip"]["points"] == 9
    assert "the zip file cannot be read" in graded.grades["is_no_zip"]["remarks"][0]
    (nothing,) = (grade for student, grade in graded.grades.items() if "[red]" in student)
    assert nothing["remarks"] == ["found no file named chNN_name.py"]
    with open(graded.out / "grades.csv", encoding="utf-8", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    student = "calls_the_library"
    assert rows.keys() == graded.grades.keys()
    assert [rows[student][name] for name in ("points", "of", "3.2", "3.5")] == ["5", "9", "2", "0"]
    results = json.loads((graded.out / "students" / student / "results.json").read_text())
    assert results["score"] == 5 == sum(test["score"] for test in results["tests"])
    failed = results["tests"][1]
    assert (failed["number"], failed["max_score"], failed["status"]) == ("3.5", 4, "failed")
    assert all("minidist's own all_reduce_ring" in text for text in (rows[student]["remarks"], failed["output"]))


@pytest.mark.long
def test_nothing_is_left_and_no_name_reaches_a_terminal_or_a_file_with_control_characters(graded):
    """No process, temporary file or shared-memory segment; names of folders, skipped files and entries of zip files."""
    assert left_in(graded.temporary) == [] and os.listdir(graded.temporary) == []
    assert dead_segments() - graded.segments == set()
    names = [str(path.relative_to(graded.out)) for path in graded.out.rglob("*")]
    remarks = [remark for grade in graded.grades.values() for remark in grade["remarks"]]
    assert all(any(words in remark for remark in remarks) for words in ("skipped ch03", "found 2"))
    assert "skipped, because" in graded.shown and "[red]" in graded.shown
    for text in (graded.shown, graded.errors, (graded.out / "grades.csv").read_text(), *names, *remarks):
        assert not {"\x9b", "\u202e"} & set(text) and "\x1b[2J" not in text, repr(text)
    assert not any("\n" in text for text in (*names, *remarks))


@pytest.mark.long
def test_a_submission_that_takes_too_long(tmp_path):
    """The time limit applies to the whole submission; a remark lists the tasks that were not judged."""
    (tmp_path / "in" / "one").mkdir(parents=True)
    (tmp_path / "in" / "one" / f"{NAME}.py").write_text(SOLUTION + "\nimport time\ntime.sleep(2)\n")
    flags = ["--timeout=5", "--task=3.2", "--task=3.5"]
    assert main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out"), *flags]) == 0
    (grade,) = json.loads((tmp_path / "out" / "grades.json").read_text())
    assert "not judged within 5 s: 3.2, 3.5" in grade["remarks"] and grade["points"] == 0


@pytest.mark.long
def test_the_autograder_of_the_documentation(tmp_path):
    """run_autograder as Gradescope runs it, with another folder in place of /autograder."""
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / f"{NAME}.py").write_text(SOLUTION)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    wrapper = tmp_path / "venv" / "bin" / "minidist"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m minidist.cli "$@" --task 3.2\n')
    wrapper.chmod(0o755)
    environment = os.environ | {"AUTOGRADER": str(tmp_path)}
    script = ROOT / "docs" / "autograder" / "run_autograder"
    subprocess.run([script], env=environment, check=True, timeout=LIMIT, capture_output=True)
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    assert results["score"] == 2 and [test["number"] for test in results["tests"]] == ["3.2"]


@pytest.mark.long
def test_other_commands_run_without_the_courses_packages(tmp_path):
    (tmp_path / f"{NAME}.py").write_text(SOLUTION)  # a learner's own answer: something to judge
    hidden = "import sys; sys.modules |= dict.fromkeys(['psutil', 'watchfiles', 'pytest', 'nbclient'])\n"
    for arguments, words in (
        (["grade", ".", "--out", "../grades"], ["needs pytest and psutil", "[course]"]),
        (["check", "3.6", "--impl", str(tmp_path)], ["the course needs pytest"]),
    ):
        code = f"{hidden}import minidist.cli.main as cli; sys.exit(cli.main({arguments}))"
        result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT)
        assert result.returncode == 2 and all(word in result.stderr for word in words), result.stderr


def test_what_a_process_of_graders_printed_when_it_ended_is_in_the_grades(tmp_path, monkeypatch):
    (tmp_path / "in" / "ann").mkdir(parents=True)
    monkeypatch.setattr(grade_submission, "grader_command", lambda *_: [sys.executable, "-c", "import no_graders"])
    assert main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--task=3.2"]) == 0
    (grade,) = json.loads((tmp_path / "out" / "grades.json").read_text())
    message = grade["tasks"]["3.2"]["message"]
    assert message.startswith("it ended the grading process\n") and message.endswith("No module named 'no_graders'")


def test_a_task_has_passed_if_all_its_tests_have():
    """Failed tests are told before tasks that are to do."""
    task = Task("3.4", 4, "code", "title", "ch03_collectives", tests=2)
    found = {}
    for states in ("", "passed", "passed passed", "passed todo", "todo failed"):
        result = TaskResult(task, [Verdict("3.4", "test", state) for state in states.split()])
        found[states] = result.state, result.points, result.failure and result.failure.state
    assert found == {
        "": ("", 0, None), "passed": ("", 0, None), "passed passed": ("passed", 4, None),
        "passed todo": ("todo", 0, "todo"), "todo failed": ("failed", 0, "failed"),
    }  # fmt: skip


def test_a_spreadsheet_gets_no_formula(tmp_path):
    write_grades(tmp_path, [], [Grade("=cmd()", [], ["+1"])])
    assert "'=cmd()" in (tmp_path / "grades.csv").read_text()
