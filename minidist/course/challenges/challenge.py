"""What a challenge is: one number that counts, what is known about it, and what became of an answer."""

from collections.abc import Callable
from dataclasses import dataclass

from minidist.course.sandbox.student import Student


@dataclass(frozen=True)
class Challenge:
    """An open task of one chapter. The smallest score wins, and no score is the smallest possible.

    Attributes:
        chapter: its number.
        name: short name, part of the name of the file of answers.
        what: an answer in a word or two: "your all-reduce".
        title: one line.
        rule: what is counted, and what an answer may not do.
        unit: unit of the score.
        library: the library's score.
        known: score of the best idea that its authors tried.
        idea: the best idea, and where it was published; without its code.
        score: judges the answers and returns their score. Raises AssertionError for a wrong answer, whatever its cost.
            It counts or replays; it measures no time, so a score is the same on every machine.
    """

    chapter: int
    name: str
    what: str
    title: str
    rule: str
    unit: str
    library: float
    known: float
    idea: str
    score: Callable[[Student], float]

    @property
    def module(self) -> str:
        """The name of the file of answers, without its ending."""
        return f"challenge{self.chapter:02d}_{self.name}"


@dataclass(frozen=True)
class Result:
    """What became of an answer.

    Attributes:
        score: None for a wrong answer.
        message: why there is no score.
        remarks: what was noticed and does not change the score.
    """

    score: float | None
    message: str = ""
    remarks: tuple[str, ...] = ()
