"""``minidist grade``: turns a folder of submissions into points and remarks.

Grades come in the forms that people and programs read: a table, grades.csv, grades.json, and a file for Gradescope.
"""

import csv
import io
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import as_completed
from pathlib import Path

from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from minidist.course.answers import write_atomically
from minidist.course.grading.grade_submission import Grade, grade_submission
from minidist.course.grading.run_graders import run_graders
from minidist.course.grading.submissions import find_submissions
from minidist.course.grading.workplace import Limits, several_at_once
from minidist.course.tasks import Task, readable, results_of

OTHERS = 10  # skipped files that are named


def grade_class(
    console: Console, submissions: Path, out: Path, limits: Limits, jobs: int, targets: Sequence[str]
) -> list[Grade]:
    """Grade every submission and write grades.csv, grades.json and, for each student, results.json for Gradescope.

    Args:
        submissions: holds a folder or a zip file for each student, named after the student.
        targets: tasks ("3.4") and chapters ("3"); none for all.

    Raises:
        ValueError: if there is nothing to grade, or the results cannot be written.
    """
    if jobs < 1:
        raise ValueError(f"--jobs must be at least 1, got {jobs}")
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
    grades: list[Grade] = []

    def grade(student: str, submission: Path) -> Grade:
        try:
            return grade_submission(student, submission, tasks, limits, go_on)
        except Exception as error:  # whatever one submission does, the others are graded
            return Grade(student, results_of(tasks, []), [f"could not be graded: {type(error).__name__}: {error}"])

    columns = SpinnerColumn(), TextColumn("{task.description}", markup=False), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress, several_at_once(jobs) as (pool, go_on):
        bar = progress.add_task("grading", total=len(entries))
        try:
            for future in as_completed([pool.submit(grade, *entry) for entry in entries]):
                grades.append(future.result())
                grades.sort(key=lambda grade: grade.student)
                write_gradescope(out, future.result())  # at once, so that not even a kill loses it
                progress.update(bar, advance=1, description=f"graded {future.result().student}")
        finally:
            write_grades(out, tasks, grades)
    console.print(table_of(grades))
    console.print(f"grades.csv, grades.json and students/NAME/results.json are in {out}/", soft_wrap=True)
    return grades


def table_of(grades: Sequence[Grade]) -> Table:
    """Tabulate the grades, with one row per student."""
    table = Table(title="grades", title_justify="left")
    for column in ("student", "points", "tasks passed", "remarks"):
        table.add_column(column, justify="left" if column in ("student", "remarks") else "right")
    for grade in grades:
        passed = sum(result.state == "passed" for result in grade.results)
        points, tasks = f"{grade.points} of {grade.total}", f"{passed} of {len(grade.results)}"
        table.add_row(grade.student, points, tasks, "\n".join(grade.remarks))
    return table


def write_grades(out: Path, tasks: Sequence[Task], grades: Sequence[Grade]) -> None:
    """Write grades.csv, one line per student, and grades.json with all details."""
    rows: list[list] = [["student", "points", "of", *(task.number for task in tasks), "remarks"]]
    for grade in grades:
        points = [result.points for result in grade.results]
        rows.append([grade.student, grade.points, grade.total, *points, "; ".join(grade.remarks)])
    write_csv(out / "grades.csv", rows)
    write_atomically(out / "grades.json", json.dumps([_as_dict(grade) for grade in grades], indent=1))


def write_gradescope(out: Path, grade: Grade) -> None:
    """Write students/NAME/results.json for Gradescope."""
    folder = out / "students" / grade.student
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "results.json", json.dumps(_for_gradescope(grade), indent=1))


def write_csv(file: Path, rows: Iterable[Iterable]) -> None:
    """Write a CSV file whose texts no spreadsheet takes for formulas."""
    text = io.StringIO(newline="")
    csv.writer(text).writerows([_cell(one) if isinstance(one, str) else one for one in row] for row in rows)
    write_atomically(file, text.getvalue())


def _cell(text: str) -> str:
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _as_dict(grade: Grade) -> dict:
    tasks = {
        result.task.number: {
            "points": result.points,
            "of": result.task.points,
            "state": result.state or "not judged",
            "message": readable(result.failure.message) if result.failure else "",
        }
        for result in grade.results
    }
    return {
        "student": grade.student, "points": grade.points, "of": grade.total, "remarks": grade.remarks,
        "seconds": round(grade.seconds, 1), "tasks": tasks,
    }  # fmt: skip


def _for_gradescope(grade: Grade) -> dict:
    """Return a grade in the format that Gradescope reads from results/results.json."""
    return {
        "score": grade.points,
        "execution_time": round(grade.seconds),
        "output": "\n".join(grade.remarks),
        "tests": [
            {
                "name": result.task.title,
                "number": result.task.number,
                "score": result.points,
                "max_score": result.task.points,
                "status": "passed" if result.state == "passed" else "failed",
                "output": readable(result.failure.message) if result.failure else "" if result.state else "not judged",
            }
            for result in grade.results
        ],
    }
