"""What grading ends in: a table to read, grades.csv, grades.json, and a file for Gradescope."""

import csv
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.table import Table

from minidist.course.judge import Judged


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


def write_grades(out: Path, grades: Sequence[Grade]) -> None:
    """grades.csv (a line a student), grades.json (everything), and <student>/results.json for Gradescope."""
    numbers = [one.task.number for one in grades[0].judged]
    with open(out / "grades.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["student", "points", "of", *numbers, "remarks"])
        for grade in grades:
            points = [one.points for one in grade.judged]
            writer.writerow([_cell(grade.student), grade.points, grade.total, *points, _cell("; ".join(grade.remarks))])
    with open(out / "grades.json", "w", encoding="utf-8") as file:
        json.dump([_as_dict(grade) for grade in grades], file, indent=1)
    for grade in grades:
        folder = out / grade.student
        folder.mkdir(exist_ok=True)
        with open(folder / "results.json", "w", encoding="utf-8") as file:
            json.dump(gradescope(grade), file, indent=1)


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
