"""``minidist grade``: a folder of submissions in, points and remarks out.

Of a submission only the files ``chNN_name.py`` are taken. They are judged by pristine copies of the graders, in
processes and a scratch folder of their own, with limits (supervise.py). A submission that brings its judge down loses
the task that did it; a new judge goes on with the rest.
"""

import shutil
import tempfile
import time
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from minidist.course.answers import CHAPTER_FILE, chapter_names, course_folder
from minidist.course.grades import Grade, table_of, write_grades
from minidist.course.judge import Judged, add_up, grader_command, judge, read_verdicts
from minidist.course.supervise import Limits, supervise
from minidist.course.tasks import Task, Verdict

FILE_BYTES = 1 << 20  # more than that is no exercise


def grade(
    console: Console, submissions: Path, out: Path, limits: Limits, jobs: int, wished: Sequence[str]
) -> list[Grade]:
    """Grade every submission and write grades.csv, grades.json and, for each student, results.json for Gradescope.

    Args:
        submissions: holds a folder or a zip file for each student, named after them.
        out: the folder for the results, made if need be.
        jobs: how many submissions are graded at once.
        wished: tasks and chapters; none for all.

    Raises:
        ValueError: where there is nothing to grade, or nowhere to write.
    """
    if jobs < 1:
        raise ValueError(f"--jobs {jobs} must be at least 1")
    entries = find_submissions(submissions)
    tasks = [one.task for one in judge("solutions", wished, "--collect-only")]
    tasks = [task for task in tasks if not wished or any(task.belongs(wish) for wish in wished)]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out {out}: cannot make this folder: {error.strerror}") from None
    columns = SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("grading", total=len(entries))

        def one(entry: tuple[str, Path]) -> Grade:
            try:
                result = grade_one(*entry, tasks, limits)
            except Exception as error:  # whatever a submission does, the others go on
                result = Grade(entry[0], add_up(tasks, []), [f"could not be graded: {type(error).__name__}: {error}"])
            progress.advance(bar)
            progress.update(bar, description=f"graded {entry[0]}")
            return result

        grades = list(pool.map(one, entries))
    write_grades(out, grades)
    console.print(table_of(grades))
    console.print(f"grades.csv, grades.json and a results.json for each student are in {out}/", soft_wrap=True)
    return grades


def find_submissions(folder: Path) -> list[tuple[str, Path]]:
    """(student, path) of each folder and zip file in a folder.

    Raises:
        ValueError: if there are none, or two for one student.
    """
    if not folder.is_dir():
        raise ValueError(f"{folder} is not a folder of submissions")
    found = [
        (entry.name.removesuffix(".zip"), entry)
        for entry in sorted(folder.iterdir())
        if not entry.name.startswith(".") and (entry.is_dir() or entry.suffix == ".zip")
    ]
    names = [name for name, _ in found]
    if not found:
        raise ValueError(f"{folder} holds no submission: neither a folder nor a zip file for a student")
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{folder} holds two submissions of {', '.join(twice)}: a folder and a zip file")
    return found


def take_answers(submission: Path, into: Path) -> list[str]:
    """Copy the files of answers out of a folder or zip file, wherever in it they lie; returns remarks."""
    remarks: list[str] = []
    taken: set[str] = set()
    if submission.is_dir():
        files = [
            (path.name, path.stat().st_size, path.read_bytes)
            for path in sorted(submission.rglob("ch*.py"))
            if path.is_file() and not path.is_symlink()
        ]
        archive = None
    else:
        try:
            archive = zipfile.ZipFile(submission)
        except (zipfile.BadZipFile, OSError) as error:
            return [f"the zip file cannot be read: {error}"]
        files = [
            (Path(info.filename).name, info.file_size, lambda info=info: archive.read(info))
            for info in archive.infolist()
            if not info.is_dir() and not info.filename.startswith("__MACOSX")
        ]
    known = chapter_names()
    for name, size, read in files:
        if not CHAPTER_FILE.fullmatch(name):
            continue
        if Path(name).stem not in known:
            remarks.append(f"{name} is no chapter's file; there are {', '.join(known)}")
        elif name in taken:
            remarks.append(f"{name} is there twice; the first was graded")
        elif size > FILE_BYTES:
            remarks.append(f"{name} has {size:,} bytes, too many; it was left out")
        else:
            taken.add(name)
            try:
                (into / name).write_bytes(read())
            except Exception as error:  # a damaged or encrypted archive
                remarks.append(f"{name} cannot be read: {type(error).__name__}: {error}")
    if not taken:
        remarks.append("there is no file chNN_name.py in it")
    return remarks


def grade_one(student: str, submission: Path, tasks: Sequence[Task], limits: Limits) -> Grade:
    """Grade one submission."""
    started = time.monotonic()
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="minidist-grade-") as folder:
        answers = Path(folder)
        remarks = take_answers(submission, answers)
        judged = add_up(tasks, [])
        while open_tasks := [one.task.number for one in judged if not one.state]:
            left = limits.seconds - (time.monotonic() - started)
            if left <= 0:
                remarks.append(f"not judged within {limits.seconds:g} s: {', '.join(open_tasks)}")
                break
            found, met, output = _judge_some(answers, open_tasks, limits, left)
            verdicts += found
            judged = add_up(tasks, verdicts)
            still_open = [one.task.number for one in judged if not one.state]
            if still_open and not met.startswith("the time limit"):
                # The judge went down in the first task that is not wholly judged; the next one begins behind it.
                why = f"it ended the process that judges it{' by meeting ' + met if met else ''}"
                verdicts.append(Verdict(still_open[0], "", "failed", why, output))
                remarks.append(f"{still_open[0]}: {why}")
                judged = add_up(tasks, verdicts)
            # (where the time is over, the loop finds that out by itself)
    return Grade(student, judged, remarks + _remarks_of(judged), time.monotonic() - started)


def _remarks_of(judged: Sequence[Judged]) -> list[str]:
    """What the graders remarked, each remark once, with the tasks that it is about."""
    about: dict[str, list[str]] = {}
    for one in judged:
        for remark in dict.fromkeys(remark for verdict in one.verdicts for remark in verdict.remarks):
            about.setdefault(remark, []).append(one.task.number)
    return [f"{', '.join(numbers)}: {remark}" for remark, numbers in about.items()]


def _judge_some(answers: Path, wished: list[str], limits: Limits, seconds: float):
    """Judge some tasks in a process of their own; returns the verdicts, the limit that was met, and what it printed."""
    with (
        tempfile.TemporaryDirectory(prefix="minidist-answers-", ignore_cleanup_errors=True) as theirs,
        tempfile.TemporaryDirectory(prefix="minidist-judge-", ignore_cleanup_errors=True) as ours,
    ):
        theirs, ours = Path(theirs, "answers"), Path(ours)  # in two places: answers that delete ".." delete their own
        shutil.copytree(answers, theirs)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(course_folder("tests/exercises"), ours / "graders", ignore=ignored)
        (ours / "scratch").mkdir()
        verdicts, output = ours / "verdicts", ours / "output"
        command = grader_command(ours / "graders", verdicts, str(theirs), wished)
        met = supervise(command, ours / "scratch", output, limits, seconds)
        found = read_verdicts(verdicts)[1]
        printed = _end_of(output)
    return found, met, printed


def _end_of(file: Path, nbytes: int = 2000) -> str:
    with open(file, "rb") as text:
        text.seek(max(0, file.stat().st_size - nbytes))
        return text.read().decode(errors="replace")
