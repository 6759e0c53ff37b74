"""Grades in the forms that people and programs read: a table, grades.csv, grades.json, and a file for Gradescope."""

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from minidist.course.answers import write_atomically
from minidist.course.grading.grade_submission import Grade
from minidist.course.readable import readable
from minidist.course.tasks import Task


def table_of(grades: Sequence[Grade]) -> Table:
    """A table with one row per student."""
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
    rows = [["student", "points", "of", *(task.number for task in tasks), "remarks"]]
    for grade in grades:
        points = [result.points for result in grade.results]
        rows.append([cell(grade.student), grade.points, grade.total, *points, cell("; ".join(grade.remarks))])
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_atomically(out / "grades.csv", text.getvalue())
    write_atomically(out / "grades.json", json.dumps([_as_dict(grade) for grade in grades], indent=1))


def write_gradescope(out: Path, grade: Grade) -> None:
    """Write students/NAME/results.json for Gradescope."""
    folder = out / "students" / grade.student
    folder.mkdir(parents=True, exist_ok=True)
    write_atomically(folder / "results.json", json.dumps(_for_gradescope(grade), indent=1))


def cell(text: str) -> str:
    """Text that a spreadsheet does not take for a formula, as it would with a leading = + - @."""
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
    """The format that Gradescope reads from results/results.json."""
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
