"""minidist grade: no submission stops the others, and each gets the points it deserves and a clear remark."""

import csv
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

import psutil
import pytest

from minidist.cli.main import main
from minidist.course.answers import ROOT, course_folder, read_answers
from minidist.course.grading.descendants import MARK
from minidist.course.grading.grade_submission import Grade
from minidist.course.grading.reports import write_grades
from minidist.course.grading.submissions import take_answers
from minidist.course.source.stubs import stub_of

NAME = "ch03_collectives"
SOLUTION = read_answers(course_folder("solutions"))[NAME].text
TASKS = {"3.2": 2, "3.5": 4, "3.6": 3}  # the tasks graded here and their points
LIMIT = 300  # seconds for one wait
HEART = "    chunks = chunks_of(flat, group.size)\n"  # the first line of task 3.5


def in_3_5(code: str) -> str:
    """The solutions, with code in front of the answer to task 3.5."""
    assert SOLUTION.count(HEART) == 1
    return SOLUTION.replace(HEART, "".join(f"    {line}\n" for line in code.splitlines()) + HEART)


# student -> (the file, points for 3.2, 3.5 and 3.6, a pattern that a remark matches)
SUBMISSIONS = {
    "solves_all": (SOLUTION, (2, 4, 3), None),
    "untouched": (stub_of(SOLUTION), (0, 0, 0), None),
    "hangs": (
        in_3_5("import time\nwhile True:\n    time.sleep(0.01)"),  # (the next one never waits)
        (2, 0, 3),
        rf"3\.5: the run did not end within .*{NAME}\.py:\d+ in all_reduce",
    ),
    "hangs_when_loaded": (SOLUTION + "\nwhile True:\n    pass\n", (0, 0, 0), r"cannot be loaded: the run did not end"),
    "forks": (in_3_5("import os\nos.fork()"), (2, 0, 3), r"3\.5: Forked: .*os\.fork"),
    "fork_bomb": (  # its processes double in number 100 times a second, and leave the cores to the other submissions
        in_3_5("import os, time\nwhile True:\n    os.fork()\n    time.sleep(0.01)"),
        (2, 0, 3),
        r"3\.5: the run did not end within",
    ),
    "exits": (in_3_5("import sys\nsys.exit(0)"), (2, 0, 3), r"3\.5: Exited: the answer ends the process: exit\(0\)"),
    "exits_hard": (in_3_5("import os\nos._exit(0)"), (2, 0, 3), r"3\.5: exited with status 0"),
    "prints_megabytes": (in_3_5("print('x' * 20_000_000)"), (2, 4, 3), r"3\.5: printed more than 20,000 characters"),
    "deletes_files": (
        "import os, shutil\nfor folder in ('.', os.path.dirname(__file__)):\n"
        "    shutil.rmtree(folder, ignore_errors=True)\n" + SOLUTION,
        (2, 4, 3),
        None,
    ),
    "patches_graders": (
        "import numpy as np, minidist.comm.group as g\n"
        "np.flatnonzero = lambda a: a[:0]\ng.ProcessGroup.traffic = None\n"
        + SOLUTION.replace("range(size - 1)", "range(size - 2)"),
        (2, 0, 3),
        r"replaces numpy\.flatnonzero, .*ProcessGroup\.traffic; it was restored",
    ),
    "calls_the_library": (
        "from minidist.comm.algorithms import all_reduce_ring as theirs\n"
        + in_3_5("return theirs(flat, combine, group)"),
        (2, 0, 3),
        r"3\.5: LibraryAnswer: the answer calls minidist's own all_reduce_ring",
    ),
    "kills_its_grader": (
        in_3_5("import os, signal\nos.killpg(0, signal.SIGKILL)"),
        (2, 0, 3),
        r"3\.5: it ended the grading process",
    ),
    "starts_a_daemon": (
        in_3_5("import subprocess\nsubprocess.Popen(['sleep', '3600'], env={}, start_new_session=True)"),
        (2, 0, 3),
        r"3\.5: StartsProgram: the answer starts a program with subprocess\.Popen",
    ),
    "eats_memory": (in_3_5("hoard = np.ones((1 << 20, 1 << 12))"), (2, 0, 3), None),
    "reads_the_solutions": (
        in_3_5("from solutions.ch03_collectives import all_reduce_ring as a\nreturn a(flat, combine, group)"),
        (2, 0, 3),
        r"3\.5: LibraryAnswer: the answer reads solutions/",
    ),
    "copies_functions": (
        "import types, minidist.comm.algorithms as a\n"
        "theirs = types.FunctionType(a.all_reduce_ring.__wrapped__.__code__, vars(a))\n"
        + in_3_5("return theirs(flat, combine, group)"),
        (2, 0, 3),
        r"3\.5: LibraryAnswer: the answer calls minidist's own all_reduce_ring",
    ),
    "copies_the_library": (
        in_3_5(
            "import importlib.util as u, minidist.comm.algorithms as a\n"
            "u.spec_from_file_location('mine', a.__file__).loader.get_data(a.__file__)"
        ),
        (2, 0, 3),
        r"3\.5: LibraryAnswer: the answer reads minidist/comm/algorithms\.py",
    ),
    "spoils_its_ranks": (  # in 3.2; the later tasks are correct and must not suffer
        SOLUTION.replace(
            "    if group.rank == 0:\n        arrived",
            "    import threading, os, signal, numpy.random\n    signal.alarm(2)\n"
            "    threading.Timer(2.0, os._exit, (0,)).start()\n    if group.rank == 0:\n        arrived",
            1,
        ),
        (2, 4, 3),
        r"3\.2: leaves threads running",
    ),
    "raises_rubbish": (in_3_5("raise ValueError('\\x1b[2J\\ud83d' + 'x' * 5_000_000)"), (2, 0, 3), None),
    "is_written_elsewhere": (
        "\ufeffimport dataclasses\n"
        + SOLUTION.replace("\n", "\r\n").replace(HEART, HEART)
        + "\r\n@dataclasses.dataclass\r\nclass Pair:\r\n    x: 'int' = 1\r\n",
        (2, 4, 3),
        None,
    ),
    "writes_below_the_stubs": (
        stub_of(SOLUTION) + SOLUTION.partition("import sendrecv")[2] + SOLUTION,
        (2, 4, 3),
        None,
    ),
    "is_no_python": ("def broken(:\n", (0, 0, 0), r"3\.2, 3\.5, 3\.6: .*cannot be loaded: SyntaxError"),
}
ALWAYS = "calls_the_library"  # graded for the tests of tables, whichever others are chosen


def processes_in(folder: str) -> set[int]:
    """The processes of submissions whose HOME is in this folder."""
    found = set()
    for process in psutil.process_iter():
        try:
            home = process.environ().get("HOME", "")
            if MARK in process.environ() and home.startswith(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.add(process.pid)
        except (psutil.Error, OSError):
            continue
    return found


def dead_segments() -> set[str]:
    """Shared-memory segments of ranks whose parent has ended."""
    names = os.listdir("/dev/shm") if Path("/dev/shm").is_dir() else []
    return {name for name in names if name.startswith("minidist-") and not psutil.pid_exists(int(name.split("-")[1]))}


@pytest.fixture(scope="module")
def graded(request, tmp_path_factory):
    """The submissions, graded in one run: exit status, folder of results, temporary folder, segments from before."""
    place = tmp_path_factory.mktemp("course")
    tests = [item for item in request.session.items if item.function is test_fair_points_and_a_clear_remark]
    students = {ALWAYS, *(item.callspec.params["student"] for item in tests)}
    for student in students:
        text, _, _ = SUBMISSIONS[student]
        (place / "in" / student / "deeper").mkdir(parents=True)
        (place / "in" / student / "deeper" / f"{NAME}.py").write_text(text)
    with zipfile.ZipFile(place / "in" / "sends_a_zip.zip", "w") as archive:
        archive.writestr(f"homework/{NAME}.py", SOLUTION)
        archive.writestr("homework/../../../conftest.py", "raise SystemExit")
        archive.writestr(f"__MACOSX/homework/._{NAME}.py", "\0\0")
    (place / "in" / "is_no_zip.zip").write_bytes(b"not a zip")
    (place / "in" / "sends_nothing").mkdir()
    (place / "in" / ".DS_Store").write_bytes(b"")
    before, temporary = dead_segments(), tempfile.mkdtemp(prefix="t")
    tasks = [argument for task in TASKS for argument in ("--task", task)]
    patch = pytest.MonkeyPatch()
    patch.setenv("COLUMNS", "200")
    patch.setattr(tempfile, "tempdir", temporary)
    status = main(["grade", str(place / "in"), "--out", str(place / "out"), "--jobs", "3", *tasks])
    patch.undo()
    yield status, place / "out", temporary, before
    shutil.rmtree(temporary)


def grade_of(graded, student: str) -> dict:
    grades = json.loads((graded[1] / "grades.json").read_text())
    return next(grade for grade in grades if grade["student"] == student)


@pytest.mark.long
@pytest.mark.parametrize("student", SUBMISSIONS)
def test_fair_points_and_a_clear_remark(graded, student):
    _, points, remark = SUBMISSIONS[student]
    grade = grade_of(graded, student)
    found = {task: one["points"] for task, one in grade["tasks"].items()}
    assert found == dict(zip(TASKS, points, strict=True)), grade
    assert grade["points"] == sum(points) and grade["of"] == sum(TASKS.values())
    remarks = grade["remarks"]
    assert any(re.search(remark, one) for one in remarks) if remark else remarks == [], remarks


@pytest.mark.long
def test_zip_files_missing_answers_tables_and_gradescope(graded):
    assert graded[0] == 0
    assert grade_of(graded, "sends_a_zip")["points"] == 9
    assert "the zip file cannot be read" in grade_of(graded, "is_no_zip")["remarks"][0]
    assert grade_of(graded, "sends_nothing")["remarks"] == ["found no file named chNN_name.py"]
    with open(graded[1] / "grades.csv", newline="") as file:
        rows = {row["student"]: row for row in csv.DictReader(file)}
    assert rows.keys() >= {ALWAYS, "sends_a_zip", "is_no_zip", "sends_nothing"}
    assert [rows[ALWAYS][name] for name in ("points", "of", "3.2", "3.5")] == ["5", "9", "2", "0"]
    results = json.loads((graded[1] / "students" / ALWAYS / "results.json").read_text())
    assert results["score"] == 5 == sum(test["score"] for test in results["tests"])
    failed = results["tests"][1]
    assert (failed["number"], failed["max_score"], failed["status"]) == ("3.5", 4, "failed")
    assert all("minidist's own all_reduce_ring" in text for text in (rows[ALWAYS]["remarks"], failed["output"]))


@pytest.mark.long
def test_nothing_is_left(graded):
    """No process, temporary file or shared-memory segment of these submissions remains."""
    assert processes_in(graded[2]) == set()
    assert os.listdir(graded[2]) == []
    assert dead_segments() - graded[3] == set()


def grade_one(folder: Path, text: str, *flags: str) -> dict:
    """The grade of one submission with this answer to chapter 3."""
    (folder / "in" / "one").mkdir(parents=True)
    (folder / "in" / "one" / f"{NAME}.py").write_text(text)
    assert main(["grade", str(folder / "in"), "--out", str(folder / "out"), *flags]) == 0
    (grade,) = json.loads((folder / "out" / "grades.json").read_text())
    return grade


@pytest.mark.long
def test_a_submission_that_takes_too_long(tmp_path):
    """The time limit applies to the whole submission; a remark lists the tasks that were not judged."""
    slow = SOLUTION + "\nimport time\ntime.sleep(2)\n"
    grade = grade_one(tmp_path, slow, "--timeout", "5", "--task", "3.2", "--task", "3.5")
    assert "not judged within 5 s: 3.2, 3.5" in grade["remarks"] and grade["points"] == 0


@pytest.mark.long
def test_the_limit_of_processes(tmp_path):
    crowd = "import ctypes\nfor _ in range(60):\n    ctypes.CDLL(None).system(b'sleep 60 &')"  # no rule sees it
    grade = grade_one(tmp_path, in_3_5(crowd), "--processes", "44", "--task", "3.2", "--task", "3.5")
    assert grade["remarks"] == ["3.5: it exceeded the limit of 44 processes"] and grade["points"] == 2


@pytest.mark.long
@pytest.mark.skipif(sys.platform != "linux", reason="calls Linux's C library")
def test_a_submission_cannot_leave_a_program(tmp_path):
    """One that starts it in a way that no rule sees."""
    program = f'env -i setsid sh -c "echo \\$\\$ >> {tmp_path}/pids; exec sleep 3600" &'
    code = f"import ctypes\nctypes.CDLL(None).system({program.encode()})"
    grade = grade_one(tmp_path, in_3_5(code), "--task", "3.5", "--processes", "999")
    pids = [int(line) for line in (tmp_path / "pids").read_text().splitlines()]
    assert pids and grade["points"] == 4
    assert [pid for pid in pids if psutil.pid_exists(pid)] == []


@pytest.mark.long
def test_an_interrupt_keeps_finished_grades_and_leaves_nothing(tmp_path, scratch):
    for student, text in (("a", SOLUTION), ("b", SOLUTION + "\nwhile True:\n    pass\n")):
        (tmp_path / "in" / student).mkdir(parents=True)
        (tmp_path / "in" / student / f"{NAME}.py").write_text(text)
    flags = [tmp_path / "in", "--out", tmp_path / "out", "--task", "3.2"]
    process = subprocess.Popen(
        [sys.executable, "-m", "minidist.cli", "grade", *flags], env=os.environ | {"TMPDIR": str(scratch)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    deadline = time.monotonic() + LIMIT
    while not (tmp_path / "out" / "students" / "a").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(2)  # b is in progress
    process.terminate()
    assert process.wait(timeout=LIMIT) == 130
    grades = json.loads((tmp_path / "out" / "grades.json").read_text())
    assert [(grade["student"], grade["points"]) for grade in grades] == [("a", 2)]
    assert list(scratch.iterdir()) == []


@pytest.mark.long
def test_names_reach_no_terminal_and_no_file_with_control_characters(tmp_path, capsys, monkeypatch):
    """The names of folders, of skipped files and of entries in a zip file are a student's to choose."""
    evil = "\x1b[2J\x9b31m\n\u202e"
    monkeypatch.setenv("COLUMNS", "300")
    (tmp_path / "in" / f"[red]{evil}").mkdir(parents=True)
    (tmp_path / "in" / f"notes{evil}.txt").touch()
    with zipfile.ZipFile(tmp_path / "in" / f"ann{evil}.zip", "w") as archive:
        archive.writestr(f"ch03{evil}.py".replace("\n", ""), "")
        for folder in (f"a{evil}", "b"):
            archive.writestr(f"{folder}/{NAME}.py", stub_of(SOLUTION))
    assert main(["grade", str(tmp_path / "in"), "--out", str(tmp_path / "out"), "--task", "3.2"]) == 0
    shown = capsys.readouterr()
    names = [str(path.relative_to(tmp_path)) for path in (tmp_path / "out").rglob("*")]
    grades = json.loads((tmp_path / "out" / "grades.json").read_text())
    remarks = [remark for grade in grades for remark in grade["remarks"]]
    assert len(grades) == 2 and all(any(words in one for one in remarks) for words in ("skipped ch03", "found 2"))
    assert "skipped, because" in shown.out and "[red]" in shown.out
    for text in (shown.out, shown.err, (tmp_path / "out" / "grades.csv").read_text(), *names, *remarks):
        assert not {"\x9b", "\u202e"} & set(text) and "\x1b[2J" not in text, repr(text)
    assert not any("\n" in text for text in (*names, *remarks))


def test_the_file_taken_from_several(tmp_path):
    """From a whole repository: the student's exercises, not the solutions, the tests or an old copy."""
    ours = tmp_path / "ours"
    ours.mkdir()
    with zipfile.ZipFile(tmp_path / "repository.zip", "w") as archive:
        for folder in ("solutions", "tests/exercises/mutants", "backup", "repository\\exercises", "exercises/.backups"):
            archive.writestr(f"{folder}/{NAME}.py".replace("/", "\\" if "\\" in folder else "/"), folder)
        archive.writestr("CH03_Collectives (1).py", "")
        archive.writestr("ch01_transformer.py", "#" * ((1 << 18) + 1))
    remarks = take_answers(tmp_path / "repository.zip", ours)
    assert [path.name for path in ours.iterdir()] == [f"{NAME}.py"]
    assert (ours / f"{NAME}.py").read_text() == "repository\\exercises"
    assert any(one.startswith("skipped CH03_Collectives (1).py") for one in remarks)
    assert f"found 2 files {NAME}.py; graded repository/exercises/{NAME}.py" in remarks
    too_large = "skipped ch01_transformer.py: 262,145 bytes is more than the limit of 262,144"
    assert any(one.startswith(too_large) for one in remarks)


@pytest.mark.long
def test_the_autograder_of_the_documentation(tmp_path):
    """run_autograder as Gradescope runs it, with another folder in place of /autograder."""
    (tmp_path / "submission").mkdir()
    (tmp_path / "submission" / f"{NAME}.py").write_text(SOLUTION)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    wrapper = tmp_path / "venv" / "bin" / "minidist"
    wrapper.write_text(f'#!/bin/sh\nexec {sys.executable} -m minidist.cli "$@" --task 3.2\n')
    wrapper.chmod(0o755)
    script = ROOT / "docs" / "autograder" / "run_autograder"
    environment = os.environ | {"AUTOGRADER": str(tmp_path)}
    subprocess.run([script], env=environment, check=True, timeout=LIMIT, capture_output=True)
    results = json.loads((tmp_path / "results" / "results.json").read_text())
    assert results["score"] == 2 and [test["number"] for test in results["tests"]] == ["3.2"]


@pytest.mark.long
def test_other_commands_run_without_the_courses_packages(tmp_path):
    hidden = "import sys; sys.modules |= dict.fromkeys(['psutil', 'watchfiles', 'pytest', 'nbclient'])\n"
    code = hidden + "import minidist.cli.main as cli; sys.exit(cli.main(['grade', '.', '--out', '../grades']))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 2 and "needs pytest and psutil" in result.stderr and "[course]" in result.stderr
    (tmp_path / f"{NAME}.py").write_text(SOLUTION)  # a learner's own answer: something to judge
    code = f"{hidden}import minidist.cli.main as cli; cli.main(['check', '3.6', '--impl', {str(tmp_path)!r}])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LIMIT)
    assert "the course needs pytest" in result.stderr


def test_a_spreadsheet_gets_no_formula(tmp_path):
    write_grades(tmp_path, [], [Grade("=cmd()", [], ["+1"])])
    assert "'=cmd()" in (tmp_path / "grades.csv").read_text()
