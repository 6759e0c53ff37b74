"""What a task is, and what a grader finds: the two things that the graders write and everyone else reads."""

from dataclasses import dataclass, field

KINDS = ("worksheet", "code", "debugging")


@dataclass
class Task:
    """One exercise, as its grader's marker has it."""

    number: str  # "3.4"
    points: int
    hint: str
    kind: str  # one of KINDS
    title: str
    chapter: str  # the file of answers, such as "ch03_collectives"
    tests: int = 0  # how many its grader has

    @property
    def order(self) -> tuple[int, ...]:
        return tuple(int(part) for part in self.number.split("."))

    def belongs(self, wish: str) -> bool:
        """Whether this is the task, or in the chapter, that is wished for: "3.4" or "3"."""
        return self.number == wish or self.number.partition(".")[0] == wish


@dataclass
class Verdict:
    """What one test found."""

    task: str
    test: str
    state: str  # "passed", "failed" or "todo"
    message: str = ""  # one line or a few: what is wrong
    details: str = ""  # where, and what the answer printed
    remarks: list[str] = field(default_factory=list)  # what was noticed but does not fail the task
    mutant: str = ""  # the planted bug, where one is being judged
