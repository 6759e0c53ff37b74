"""What grading ends in: a table to read, grades.csv, grades.json, and a file for Gradescope."""

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from minidist.course.answers import write_whole
from minidist.course.grading.judge import Judged
from minidist.course.tasks import Task


@dataclass
class Grade:
    """What one student gets."""

    student: str
    judged: list[Judged]
    remarks: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def points(self) -> int:
        return sum(one.points for one in self.judged)

    @property
    def total(self) -> int:
        return sum(one.task.points for one in self.judged)


def table_of(grades: Sequence[Grade]) -> Table:
    """A line for each student."""
    table = Table(title="grades", title_justify="left")
    for column in ("student", "points", "tasks passed", "remarks"):
        table.add_column(column, justify="left" if column in ("student", "remarks") else "right")
    for one in grades:
        passed = sum(judged.state == "passed" for judged in one.judged)
        table.add_row(
            one.student, f"{one.points} of {one.total}", f"{passed} of {len(one.judged)}", "\n".join(one.remarks)
        )
    return table


def write_grades(out: Path, tasks: Sequence[Task], grades: Sequence[Grade]) -> None:
    """grades.csv, a line a student, and grades.json, everything."""
    rows = [["student", "points", "of", *(task.number for task in tasks), "remarks"]]
    for grade in grades:
        points = [one.points for one in grade.judged]
        rows.append([_cell(grade.student), grade.points, grade.total, *points, _cell("; ".join(grade.remarks))])
    text = io.StringIO(newline="")
    csv.writer(text).writerows(rows)
    write_whole(out / "grades.csv", text.getvalue())
    write_whole(out / "grades.json", json.dumps([_as_dict(grade) for grade in grades], indent=1))


def write_results(out: Path, grade: Grade) -> None:
    """students/<name>/results.json for Gradescope."""
    folder = out / "students" / grade.student
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "results.json", json.dumps(gradescope(grade), indent=1))


def _cell(text: str) -> str:
    """Text that a spreadsheet takes for text: a leading = + - @ would make it a formula."""
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def _as_dict(grade: Grade) -> dict:
    tasks = {
        one.task.number: {
            "points": one.points,
            "of": one.task.points,
            "state": one.state or "not judged",
            "message": one.failure.message if one.failure else "",
        }
        for one in grade.judged
    }
    return {
        "student": grade.student, "points": grade.points, "of": grade.total, "remarks": grade.remarks,
        "seconds": round(grade.seconds, 1), "tasks": tasks,
    }  # fmt: skip


def gradescope(grade: Grade) -> dict:
    """The form that Gradescope's autograder reads from results/results.json."""
    return {
        "score": grade.points,
        "execution_time": round(grade.seconds),
        "output": "\n".join(grade.remarks),
        "tests": [
            {
                "name": one.task.title,
                "number": one.task.number,
                "score": one.points,
                "max_score": one.task.points,
                "status": "passed" if one.state == "passed" else "failed",
                "output": one.failure.message if one.failure else "" if one.state else "not judged",
            }
            for one in grade.judged
        ],
    }
