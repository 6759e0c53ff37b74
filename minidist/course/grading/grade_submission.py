"""Grades one submission, whatever its code does.

Only the files ``chNN_name.py`` are taken from a submission. Pristine copies of the graders judge them, in processes and
a scratch folder of their own, with limits (supervise.py). A submission that ends its grading process loses the task
that did so; a new grading process judges the other tasks.
"""

import shutil
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minidist.course.answers import course_folder
from minidist.course.grading.run_graders import NO_OTHER_PLUGINS, SHORT, grader_command
from minidist.course.grading.submissions import take_answers
from minidist.course.grading.supervise import Limits, supervise
from minidist.course.tasks import Task, TaskResult, Verdict, results_of
from minidist.course.verdict_file import read_verdicts


@dataclass
class Grade:
    """One student's results."""

    student: str
    results: list[TaskResult]
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def points(self) -> int:
        return sum(result.points for result in self.results)

    @property
    def total(self) -> int:
        return sum(result.task.points for result in self.results)


def grade_submission(
    student: str, submission: Path, tasks: Sequence[Task], limits: Limits, stop: threading.Event
) -> Grade:
    """Grade one folder or zip file; end early when ``stop`` is set."""
    started = time.monotonic()
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="minidist-grade-") as folder:
        answers = Path(folder)
        remarks = take_answers(submission, answers)
        results = results_of(tasks, [])
        while unjudged := [result.task.number for result in results if not result.state]:
            left = limits.seconds - (time.monotonic() - started)
            if left <= 0 or stop.is_set():
                remarks.append(f"not judged within {limits.seconds:g} s: {', '.join(unjudged)}")
                break
            found, exceeded, output = _judge(answers, unjudged, limits, left, stop)
            verdicts += found
            results = results_of(tasks, verdicts)
            unjudged = [result.task.number for result in results if not result.state]
            if unjudged and not stop.is_set() and not exceeded.startswith("the time limit"):
                # The grading process ended in the first task without a result. The next process starts after it.
                why = f"it exceeded {exceeded}" if exceeded else "it ended the grading process"
                verdicts.append(Verdict(unjudged[0], "", "failed", why, output))
                remarks.append(f"{unjudged[0]}: {why}")
                results = results_of(tasks, verdicts)
    return Grade(student, results, remarks + _remarks_of(results), time.monotonic() - started)


def _remarks_of(results: Sequence[TaskResult]) -> list[str]:
    """The graders' remarks, each one once, with the tasks it applies to."""
    numbers_of: dict[str, list[str]] = {}
    for result in results:
        for remark in dict.fromkeys(remark for verdict in result.verdicts for remark in verdict.remarks):
            numbers_of.setdefault(remark, []).append(result.task.number)
    return [f"{', '.join(numbers)}: {remark}" for remark, numbers in numbers_of.items()]


def _judge(
    answers: Path, targets: list[str], limits: Limits, seconds: float, stop: threading.Event
) -> tuple[list[Verdict], str, str]:
    """Judge some tasks in a process of its own; returns the verdicts, the limit it exceeded, and what it printed."""
    with (
        tempfile.TemporaryDirectory(prefix="minidist-answers-", ignore_cleanup_errors=True) as theirs,
        tempfile.TemporaryDirectory(prefix=SHORT, ignore_cleanup_errors=True) as ours,
    ):
        theirs, ours = Path(theirs, "answers"), Path(ours)  # apart, so that answers that delete ".." delete their own
        shutil.copytree(answers, theirs)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(course_folder("tests/exercises"), ours / "graders", ignore=ignored)
        (ours / "scratch").mkdir()
        verdicts, output = ours / "verdicts", ours / "output"
        memory = "--memory-limit", str(limits.memory)
        command = grader_command(ours / "graders", verdicts, str(theirs), targets, *memory)
        exceeded = supervise(command, NO_OTHER_PLUGINS, ours / "scratch", output, limits, seconds, stop)
        found = read_verdicts(verdicts)[1]
        printed = _end_of(output)
    return found, exceeded, printed


def _end_of(file: Path, nbytes: int = 2000) -> str:
    with open(file, "rb") as text:
        text.seek(max(0, file.stat().st_size - nbytes))
        return text.read().decode(errors="replace")
