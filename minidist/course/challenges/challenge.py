"""Challenges, each scored by one number, and the results of answers to them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import exp, fsum, log
from pathlib import Path
from secrets import randbits

import numpy as np

from minidist.course.answers import Source, course_folder, read_source
from minidist.course.sandbox.student import Student

FOLDER = "challenges"  # a subfolder of a folder of answers


@dataclass(frozen=True)
class Challenge:
    """An open task of one chapter. The smallest score wins, and no score is the smallest possible.

    Attributes:
        chapter: number of the chapter.
        name: short name, part of the name of the file of answers.
        what: name of an answer in a word or two, as in "your all-reduce".
        title: one line.
        rule: what is counted, and what an answer may not do.
        unit: unit of the score.
        library: the library's score.
        known: score of the best idea that its authors tried.
        idea: the best idea, and where it was published; without its code.
        score: function that judges answers and returns their score. It raises AssertionError for a wrong answer,
            whatever its cost. It counts or replays and measures no time, so a score is the same on every machine.
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
    """Outcome of judging an answer.

    Attributes:
        score: the answer's score; None for a wrong answer.
        message: why there is no score.
        remarks: observations that do not change the score.
    """

    score: float | None
    message: str = ""
    remarks: tuple[str, ...] = ()


def file_in(folder: Path, challenge: Challenge) -> Path:
    """Return the path of the answer in a folder of answers."""
    return folder / FOLDER / f"{challenge.module}.py"


def library_answer(challenge: Challenge) -> Source:
    """Return the library's answer, with which a learner begins."""
    return read_source(file_in(course_folder("solutions"), challenge))


def answer_in(folder: Path, challenge: Challenge) -> Source | None:
    """Return the answer in a folder of answers; None if the file is missing or still holds the library's answer."""
    file = file_in(folder, challenge)
    if not file.is_file():
        return None
    source = read_source(file)
    return None if source.text == library_answer(challenge).text else source


def geometric_mean(costs: Iterable[float]) -> float:
    """Return the geometric mean, in which the same ratio counts as much in a small case as in a large one.

    Raises:
        AssertionError: if a case costs nothing.
    """
    logs = []
    for cost in costs:
        assert cost > 0, "a case costs nothing, which is impossible for a right answer"
        logs.append(log(cost))
    return exp(fsum(logs) / len(logs))


def new_seed() -> int:
    """Return a random seed, so that no answer knows what other ranks hold. Scores do not depend on it."""
    return randbits(62)


def random_words(seed: int, elements: int) -> np.ndarray:
    """Return random 64-bit integers, which do not compress. Sums wrap around: exact in any order.  (elements,)"""
    lowest, highest = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    return np.random.default_rng(seed).integers(lowest, highest, elements, endpoint=True)


def whole_numbers(value, length: int | None, what: str) -> list[int]:
    """Assert that the value is a list of whole numbers, of this length unless it is None; return them as ints."""
    assert isinstance(value, list | tuple), f"{what}: expected a list, got {value!r:.60}"
    for item in value:
        whole = isinstance(item, int | np.integer) and not isinstance(item, bool)
        assert whole, f"{what}: expected whole numbers, got {item!r:.60}"
    assert length is None or len(value) == length, f"{what}: expected {length} numbers, got {len(value)}"
    return [int(item) for item in value]


def words(value, what: str) -> list[str]:
    """Assert that the value is a list of strings, and return it."""
    is_list = isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
    assert is_list, f"{what}: expected a list of strings, got {value!r:.60}"
    return list(value)
