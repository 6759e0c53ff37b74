"""A task, a grader's verdicts on it, and the result they add up to: what graders write and everyone else reads."""

from collections.abc import Sequence
from dataclasses import dataclass, field

KINDS = ("worksheet", "code", "debugging")


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
        """Whether this is the target ("3.4") or belongs to it ("3")."""
        return target in (self.number, self.number.partition(".")[0])


@dataclass
class Verdict:
    """The outcome of one test."""

    task: str
    test: str
    state: str  # "passed", "failed" or "todo"
    message: str = ""  # one line or a few: what is wrong
    details: str = ""  # where, and what the answer printed
    remarks: list[str] = field(default_factory=list)  # what was noticed but does not fail the task
    mutant: str = ""  # the bug, where a mutant is judged
    uses: list[str] = field(default_factory=list)  # where it failed: the other tasks whose functions the answer names


@dataclass
class TaskResult:
    """One task and all verdicts on it."""

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
        """The first verdict that is not "passed"."""
        return next((verdict for verdict in self.verdicts if verdict.state != "passed"), None)


def results_of(tasks: Sequence[Task], verdicts: Sequence[Verdict]) -> list[TaskResult]:
    """The result of every task, in the order of the tasks."""
    results = {task.number: TaskResult(task) for task in tasks}
    for verdict in verdicts:
        results[verdict.task].verdicts.append(verdict)
    return list(results.values())
