"""``minidist grade``: turns a folder of submissions into points and remarks."""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from minidist.course.grading.grade_submission import Grade, grade_submission
from minidist.course.grading.limits import Limits
from minidist.course.grading.reports import table_of, write_grades, write_gradescope
from minidist.course.grading.run_graders import run_graders
from minidist.course.grading.submissions import find_submissions
from minidist.course.tasks import results_of

OTHERS = 10  # files beside the submissions that are named


def grade_class(
    console: Console, submissions: Path, out: Path, limits: Limits, jobs: int, targets: Sequence[str]
) -> list[Grade]:
    """Grade every submission and write grades.csv, grades.json and, for each student, results.json for Gradescope.

    Args:
        submissions: holds a folder or a zip file for each student, named after the student.
        out: the folder for the results; created if necessary.
        jobs: how many submissions are graded at once.
        targets: tasks ("3.4") and chapters ("3"); none for all.

    Raises:
        ValueError: if there is nothing to grade, or the results cannot be written.
    """
    if jobs < 1:
        raise ValueError(f"--jobs {jobs} must be at least 1")
    entries, others = find_submissions(submissions)
    if out.resolve().is_relative_to(submissions.resolve()):
        raise ValueError(f"--out {out} is among the submissions; choose a folder outside of {submissions}")
    tasks = [result.task for result in run_graders("solutions", targets, "--collect-only")]
    tasks = [task for task in tasks if not targets or any(task.matches(target) for target in targets)]
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_grades(out, tasks, [])  # a problem with --out should show now, not after an hour
    except OSError as error:
        raise ValueError(f"--out {out}: cannot write there: {error.strerror}") from None
    if others:
        some = ", ".join(others[:OTHERS]) + (f" and {len(others) - OTHERS} more" if len(others) > OTHERS else "")
        console.print(f"skipped, because they are neither folders nor zip files: {some}", style="yellow")
    stop = threading.Event()
    grades: list[Grade] = []

    def go_on() -> None:
        if stop.is_set():
            raise RuntimeError("interrupted")

    def grade(student: str, submission: Path) -> Grade:
        try:
            return grade_submission(student, submission, tasks, limits, go_on)
        except Exception as error:  # whatever one submission does, the others are graded
            return Grade(student, results_of(tasks, []), [f"could not be graded: {type(error).__name__}: {error}"])

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress, ThreadPoolExecutor(jobs) as pool:
        bar = progress.add_task("grading", total=len(entries))
        try:
            for future in as_completed([pool.submit(grade, *entry) for entry in entries]):
                grades.append(future.result())
                grades.sort(key=lambda grade: grade.student)
                write_gradescope(out, future.result())  # at once, so that not even a kill loses it
                progress.update(bar, advance=1, description=f"graded {future.result().student}")
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
        finally:
            write_grades(out, tasks, grades)
    console.print(table_of(grades))
    console.print(f"grades.csv, grades.json and students/NAME/results.json are in {out}/", soft_wrap=True)
    return grades
