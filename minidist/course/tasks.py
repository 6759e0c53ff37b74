"""Tasks, a grader's verdicts on them, and the results they add up to: what graders write and everyone else reads.

A grading process reports to the one that started it in a file with one JSON object per line: the tasks, then one
verdict each. Without such a file, the tasks of a chapter are read from the source of its graders: nothing is imported,
so that takes milliseconds. Text from a submission is made safe for any file and any terminal.
"""

import ast
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from minidist.course.answers import chapter_of, course_folder

KINDS = ("worksheet", "code", "debugging")
CHARACTERS = 2000  # longest text from a submission


@dataclass
class Task:
    """One exercise, as its grader's marker describes it."""

    number: str  # "3.4"
    points: int
    kind: str  # one of KINDS
    title: str
    chapter: str  # the file of answers, such as "ch03_collectives"
    tests: int = 0  # how many tests its grader has

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.number.split("."))

    def matches(self, target: str) -> bool:
        """Return whether this task is the target ("3.4") or belongs to it ("3", "03", "ch03_collectives")."""
        return target in (self.number, self.number.partition(".")[0], self.chapter[2:4], self.chapter)


@dataclass
class Verdict:
    """The outcome of one test."""

    task: str
    test: str
    state: str  # "passed", "failed" or "todo"
    message: str = ""  # one line or a few: what is wrong
    details: str = ""  # where it happened, and what the answer printed
    remarks: list[str] = field(default_factory=list)  # observations that do not fail the task
    mutant: str = ""  # the bug, if a mutant was judged
    uses: list[str] = field(default_factory=list)  # if it failed: the other tasks whose functions the answer names


@dataclass
class TaskResult:
    """A task and all verdicts on it."""

    task: Task
    verdicts: list[Verdict] = field(default_factory=list)

    @property
    def state(self) -> str:
        """ "passed" when every test of the task has passed; else "failed", "todo", or "" if it was not judged."""
        states = [verdict.state for verdict in self.verdicts]
        if "failed" in states or "todo" in states:
            return "failed" if "failed" in states else "todo"
        return "passed" if states and len(states) >= self.task.tests else ""

    @property
    def points(self) -> int:
        return self.task.points if self.state == "passed" else 0

    @property
    def failure(self) -> Verdict | None:
        """The first "failed" verdict, else the first "todo" one, else None."""
        unmet = [verdict for verdict in self.verdicts if verdict.state != "passed"]
        return next((verdict for verdict in unmet if verdict.state == "failed"), next(iter(unmet), None))


def results_of(tasks: Sequence[Task], verdicts: Sequence[Verdict]) -> list[TaskResult]:
    """Return the result of every task, in the order of the tasks."""
    results = {task.number: TaskResult(task) for task in tasks}
    for verdict in verdicts:
        results[verdict.task].verdicts.append(verdict)
    return list(results.values())


def tell(path: str | None, **entry) -> None:
    """Append ``tasks`` (a list of dicts) or a ``verdict`` (a dict) to the file; without a path, do nothing."""
    if path:
        with open(path, "a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def read_verdicts(path: Path) -> tuple[list[Task], list[Verdict]]:
    """Read the tasks and verdicts written so far. A line that is still being written is ignored."""
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


def tasks_of(chapter: str) -> list[Task]:
    """Return the tasks of a chapter such as "ch03_collectives", in order. Only pytest knows how many tests each has."""
    tasks = [_task(chapter, node) for node in task_classes(ast.parse(grader_of(chapter)))]
    return sorted(tasks, key=lambda task: task.order)


def grader_of(chapter: str) -> str:
    """Return the source of a chapter's graders."""
    return (course_folder("tests/exercises") / f"test_{chapter}.py").read_text(encoding="utf-8")


def tasks_named(target: str) -> list[Task]:
    """Return the task ("3.4"), or the tasks of the chapter ("3"), that ``target`` names.

    Raises:
        ValueError: if no such task or chapter exists.
    """
    tasks = tasks_of(chapter_of(target))
    found = [task for task in tasks if task.matches(target)]
    if not found:
        raise ValueError(f"there is no task {target}; choose from {', '.join(task.number for task in tasks)}")
    return found


def task_classes(graders: ast.Module) -> list[ast.ClassDef]:
    """Return the classes that are marked as the grader of a task."""
    return [node for node in graders.body if isinstance(node, ast.ClassDef) and _markers(node)]


def number_of_class(node: ast.ClassDef) -> str:
    """Return the number of the task that a class grades, such as "3.4"."""
    return ast.literal_eval(_markers(node)[0].args[0])


def _markers(node: ast.ClassDef) -> list[ast.Call]:
    calls = [decorator for decorator in node.decorator_list if isinstance(decorator, ast.Call)]
    return [call for call in calls if ast.unparse(call.func) == "pytest.mark.task"]


def _task(chapter: str, node: ast.ClassDef) -> Task:
    keys = {keyword.arg: keyword.value for keyword in _markers(node)[0].keywords}
    kind = ast.literal_eval(keys["kind"]) if "kind" in keys else "code"
    title = (ast.get_docstring(node) or "").partition("\n")[0]
    return Task(number_of_class(node), ast.literal_eval(keys["points"]), kind, title, chapter)


def readable(text: str) -> str:
    """Replace control characters, such as a terminal's escapes, and cut the text to CHARACTERS."""
    return _printable(text, "\n\t")


def readable_line(text: str) -> str:
    """Replace all control characters, tabs and line ends included, and cut the text: for names and single lines."""
    return _printable(text, "")


def _printable(text: str, others: str) -> str:
    text = text if len(text) <= CHARACTERS else text[:CHARACTERS] + " [...]"
    return "".join(c if c.isprintable() or c in others else "\ufffd" for c in text)
