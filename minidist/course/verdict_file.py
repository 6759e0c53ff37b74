"""How the grading process reports to the process that started it: a file with one JSON object per line.

The first line lists the tasks; each further line is one verdict.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from minidist.course.tasks import Task, Verdict


def write_tasks(path: str | None, tasks: Sequence[Task]) -> None:
    """Append the tasks; without a path, do nothing."""
    _append(path, {"tasks": [asdict(task) for task in tasks]})


def write_verdict(path: str | None, verdict: Verdict) -> None:
    """Append a verdict; without a path, do nothing."""
    _append(path, {"verdict": asdict(verdict)})


def _append(path: str | None, entry: dict) -> None:
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def read_verdicts(path: Path) -> tuple[list[Task], list[Verdict]]:
    """The tasks and verdicts written so far. A line that is still being written is ignored."""
    tasks: list[Task] = []
    verdicts: list[Verdict] = []
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    for line in text[: text.rfind("\n") + 1].splitlines():
        entry = json.loads(line)
        if "tasks" in entry:
            tasks = [Task(**task) for task in entry["tasks"]]
        else:
            verdicts.append(Verdict(**entry["verdict"]))
    return tasks, verdicts
