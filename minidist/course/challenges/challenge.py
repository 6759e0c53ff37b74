"""What a challenge is: one number that counts, what is known about it, and what became of an answer."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, fsum, log
from pathlib import Path
from secrets import randbits

import numpy as np

from minidist.course.answers import Source, course_folder, read_source
from minidist.course.sandbox.student import Student

FOLDER = "challenges"  # of their answers, inside a folder of answers


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


def file_in(folder: Path, challenge: Challenge) -> Path:
    """Where the answer is in a folder of answers."""
    return folder / FOLDER / f"{challenge.module}.py"


def library_answer(challenge: Challenge) -> Source:
    """The library's answer, which is also what a learner begins with."""
    return read_source(file_in(course_folder("solutions"), challenge))


def answer_in(folder: Path, challenge: Challenge) -> Source | None:
    """The answer in a folder of answers; None if the file is missing, or still the library's answer."""
    file = file_in(folder, challenge)
    if not file.is_file():
        return None
    source = read_source(file)
    return None if source.text == library_answer(challenge).text else source


def geometric_mean(costs: Iterable[float]) -> float:
    """The mean in which each case counts for its ratio, however large it is.

    Raises:
        AssertionError: if a case costs nothing.
    """
    logs = []
    for cost in costs:
        assert cost > 0, "a case costs nothing, which is impossible for a right answer"
        logs.append(log(cost))
    return exp(fsum(logs) / len(logs))


def new_seed() -> int:
    """Another one in each judging: no answer can know what other ranks hold. Scores do not depend on it."""
    return randbits(62)


def random_words(seed: int, elements: int) -> np.ndarray:
    """64 random bits each, which nothing can compress. Sums wrap around: exact in any order.  (elements,)"""
    lowest, highest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return np.random.default_rng(seed).integers(lowest, highest, elements, endpoint=True)


def whole_numbers(value, length: int | None, what: str) -> list[int]:
    """The value, asserted to be a list of whole numbers, of this length if one is given."""
    assert isinstance(value, list | tuple), f"{what}: expected a list, got {value!r:.60}"
    for item in value:
        whole = isinstance(item, int | np.integer) and not isinstance(item, bool)
        assert whole, f"{what}: expected whole numbers, got {item!r:.60}"
    assert length is None or len(value) == length, f"{what}: expected {length} numbers, got {len(value)}"
    return [int(item) for item in value]


def words(value, what: str) -> list[str]:
    """The value, asserted to be a list of strings."""
    is_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    assert is_list, f"{what}: expected a list of strings, got {value!r:.60}"
    return list(value)
