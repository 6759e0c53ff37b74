"""What several challenges share."""

from collections.abc import Iterable
from math import exp, fsum, log
from secrets import randbits

import numpy as np


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
