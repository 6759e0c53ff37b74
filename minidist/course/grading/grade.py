"""``minidist grade``: a folder of submissions in, points and remarks out.

Of a submission only the files ``chNN_name.py`` are taken. They are judged by pristine copies of the graders, in
processes and a scratch folder of their own, with limits (supervise.py). A submission that brings its judge down loses
the task that did it; a new judge goes on with the rest.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from minidist.course.answers import course_folder
from minidist.course.grading.grades import Grade, table_of, write_grades, write_results
from minidist.course.grading.judge import SHORT, Judged, add_up, grader_command, judge, read_verdicts
from minidist.course.grading.submissions import find_submissions, take_answers
from minidist.course.grading.supervise import Limits, supervise
from minidist.course.tasks import Task, Verdict


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
    entries, others = find_submissions(submissions)
    if out.resolve().is_relative_to(submissions.resolve()):
        raise ValueError(f"--out {out} lies among the submissions; choose a folder outside of {submissions}")
    tasks = [one.task for one in judge("solutions", wished, "--collect-only")]
    tasks = [task for task in tasks if not wished or any(task.belongs(wish) for wish in wished)]
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_grades(out, tasks, [])  # now rather than after an hour
    except OSError as error:
        raise ValueError(f"--out {out}: cannot write there: {error.strerror}") from None
    if others:
        console.print(f"not taken, as neither folders nor zip files: {', '.join(others)}", style="yellow")
    stop = threading.Event()
    grades: list[Grade] = []

    def one(entry: tuple[str, Path]) -> Grade:
        try:
            return grade_one(*entry, tasks, limits, stop)
        except Exception as error:  # whatever a submission does, the others go on
            return Grade(entry[0], add_up(tasks, []), [f"could not be graded: {type(error).__name__}: {error}"])

    columns = SpinnerColumn(), TextColumn("{task.description}"), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("grading", total=len(entries))
        try:
            for future in as_completed([pool.submit(one, entry) for entry in entries]):
                grades.append(future.result())
                grades.sort(key=lambda grade: grade.student)
                write_results(out, future.result())
                write_grades(out, tasks, grades)  # each time: what is done is kept, whatever comes
                progress.update(bar, advance=1, description=f"graded {future.result().student}")
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
    console.print(table_of(grades))
    where = f"grades.csv, grades.json and students/NAME/results.json are in {out}/"
    console.print(where, soft_wrap=True)
    return grades


def grade_one(student: str, submission: Path, tasks: Sequence[Task], limits: Limits, stop: threading.Event) -> Grade:
    """Grade one submission; leave off where ``stop`` is set."""
    started = time.monotonic()
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="minidist-grade-") as folder:
        answers = Path(folder)
        remarks = take_answers(submission, answers)
        judged = add_up(tasks, [])
        while open_tasks := [one.task.number for one in judged if not one.state]:
            left = limits.seconds - (time.monotonic() - started)
            if left <= 0 or stop.is_set():
                remarks.append(f"not judged within {limits.seconds:g} s: {', '.join(open_tasks)}")
                break
            found, met, output = _judge_some(answers, open_tasks, limits, left, stop)
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


def _judge_some(answers: Path, wished: list[str], limits: Limits, seconds: float, stop: threading.Event):
    """Judge some tasks in a process of their own; returns the verdicts, the limit that was met, and what it printed."""
    with (
        tempfile.TemporaryDirectory(prefix="minidist-answers-", ignore_cleanup_errors=True) as theirs,
        tempfile.TemporaryDirectory(prefix=SHORT, ignore_cleanup_errors=True) as ours,
    ):
        theirs, ours = Path(theirs, "answers"), Path(ours)  # in two places: answers that delete ".." delete their own
        shutil.copytree(answers, theirs)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(course_folder("tests/exercises"), ours / "graders", ignore=ignored)
        (ours / "scratch").mkdir()
        verdicts, output = ours / "verdicts", ours / "output"
        more = "--memory-limit", str(limits.memory)
        command = grader_command(ours / "graders", verdicts, str(theirs), wished, *more)
        met = supervise(command, ours / "scratch", output, limits, seconds, stop)
        found = read_verdicts(verdicts)[1]
        printed = _end_of(output)
    return found, met, printed


def _end_of(file: Path, nbytes: int = 2000) -> str:
    with open(file, "rb") as text:
        text.seek(max(0, file.stat().st_size - nbytes))
        return text.read().decode(errors="replace")
