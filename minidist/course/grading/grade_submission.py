"""Grades one submission, whatever its code does.

Only the files ``chNN_name.py`` are taken from a submission. Pristine copies of the graders judge them, in processes and
a scratch folder of their own, with limits (workplace.py). A submission that ends its grading process loses the task
that did so; a new grading process judges the other tasks.
"""

import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from minidist.course.answers import course_folder
from minidist.course.grading.run_graders import NO_OTHER_PLUGINS, grader_command
from minidist.course.grading.submissions import take_answers
from minidist.course.grading.workplace import Limits, Workplace
from minidist.course.tasks import Task, TaskResult, Verdict, read_verdicts, readable_line, results_of

REMARKS = 20  # at most this many for one submission: each of 151 tasks may have one


@dataclass
class Grade:
    """Results of one student."""

    student: str
    results: list[TaskResult]
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    def __post_init__(self) -> None:
        more = len(self.remarks) - REMARKS  # a submission decides their number, and the names of files in them
        self.remarks = [readable_line(remark) for remark in self.remarks[:REMARKS]] + [f"{more} more"] * (more > 0)

    @property
    def points(self) -> int:
        return sum(result.points for result in self.results)

    @property
    def total(self) -> int:
        return sum(result.task.points for result in self.results)


def grade_submission(
    student: str, submission: Path, tasks: Sequence[Task], limits: Limits, meanwhile: Callable[[], None]
) -> Grade:
    """Grade one folder or zip file. ``meanwhile`` is called repeatedly; an exception that it raises ends everything."""
    started = time.monotonic()
    verdicts: list[Verdict] = []
    with Workplace() as workplace:
        answers = workplace.new_folder()
        remarks = take_answers(submission, answers)
        results = results_of(tasks, [])
        while unjudged := [result.task.number for result in results if not result.state]:
            left = limits.seconds - (time.monotonic() - started)
            if left <= 0:
                remarks.append(f"not judged within {limits.seconds:g} s: {', '.join(unjudged)}")
                break
            found, exceeded, output = _judge(workplace, answers, unjudged, replace(limits, seconds=left), meanwhile)
            verdicts += found
            results = results_of(tasks, verdicts)
            unjudged = [result.task.number for result in results if not result.state]
            if unjudged and exceeded != "time":
                # The grading process ended in the first task without a result. The next process starts after it.
                why = "it ended the grading process"
                if exceeded == "processes":
                    why = f"it exceeded the limit of {limits.processes} processes"
                verdicts.append(Verdict(unjudged[0], "", "failed", f"{why}\n{output}".strip()))
                remarks.append(f"{unjudged[0]}: {why}")
                results = results_of(tasks, verdicts)
    return Grade(student, results, remarks + _remarks_of(results), time.monotonic() - started)


def _remarks_of(results: Sequence[TaskResult]) -> list[str]:
    """Return each of the graders' remarks once, with the tasks that it applies to."""
    numbers_of: dict[str, list[str]] = {}
    for result in results:
        for remark in dict.fromkeys(remark for verdict in result.verdicts for remark in verdict.remarks):
            numbers_of.setdefault(remark, []).append(result.task.number)
    return [f"{', '.join(numbers)}: {remark}" for remark, numbers in numbers_of.items()]


def _judge(
    workplace: Workplace,
    answers: Path,
    targets: list[str],
    limits: Limits,
    meanwhile: Callable[[], None],
) -> tuple[list[Verdict], str, str]:
    """Judge some tasks in a new process; return the verdicts, the limit that it exceeded, and the end of its output."""
    ours, theirs = workplace.new_folder(), workplace.new_folder() / "answers"
    shutil.copytree(answers, theirs)  # apart from ours, so that answers that delete ".." delete their own
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(course_folder("tests/exercises"), ours / "graders", ignore=ignored)
    scratch, verdicts, output = ours / "scratch", ours / "verdicts", ours / "output"
    scratch.mkdir()
    command = grader_command(ours / "graders", verdicts, str(theirs), targets)
    home = {"HOME": str(scratch), "TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    outcome = workplace.run(command, home | NO_OTHER_PLUGINS, scratch, output, limits, meanwhile)
    return read_verdicts(verdicts)[1], outcome.exceeded, _end_of(output)


def _end_of(file: Path) -> str:
    with open(file, "rb") as text:
        text.seek(max(0, file.stat().st_size - 1000))
        return text.read().decode(errors="replace")
