"""Assertions that speak of ranks instead of numbers: whose part of a sum is missing, whose array arrived instead.

They need random numbers, such as ``values.numbers``: a sum of those tells its terms.
"""

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from minidist.course.authoring.assertions import same

MOST_RANKS = 7  # 3^7 ways to count each rank's part never, once or twice
PROBE = 8  # wrong elements that have to agree with one of them


def is_sum(
    found, parts: Sequence[np.ndarray], what: str, others: Mapping[str, Sequence[np.ndarray]] | None = None
) -> None:
    """Assert that an array is the sum of all ranks' parts; else say whose part is missing or counted twice.

    Args:
        found: what came back.
        parts: what each rank contributes.
        what: where the array was found, such as "chunk 0 on rank 0 of 3".
        others: the parts of other sums that may have been mistaken for this one, by name, such as "chunk 1".
    """
    expected = np.sum(parts, axis=0, dtype=parts[0].dtype)
    if isinstance(found, np.ndarray) and found.dtype == expected.dtype and found.shape == expected.shape:
        wrong = np.flatnonzero(found != expected)[:PROBE]
        for name, terms in {"": parts, **(others or {})}.items():
            if len(wrong) and terms[0].shape == found.shape:
                counts = _counts(found[wrong], [term[wrong] for term in terms])
                assert counts is None, f"{what}: {_described(name, counts)}"
    same(found, expected, what)


def is_copy(found, right: str, copies: Mapping[str, np.ndarray], what: str) -> None:
    """Assert that an array is the copy of that name; else say which other one came.

    Args:
        copies: arrays by name, such as "rank 1's" or "what was there before".
    """
    expected = copies[right]
    if isinstance(found, np.ndarray) and found.dtype == expected.dtype and not np.array_equal(found, expected):
        for name, other in copies.items():
            assert not np.array_equal(found, other), f"{what}: expected {right}, got {name}"
    same(found, expected, what)


def _counts(found: np.ndarray, terms: Sequence[np.ndarray]) -> list[int] | None:
    """How often each rank's part is in a sum; None if several answers fit, or none."""
    if len(terms) > MOST_RANKS:
        return None
    ways = np.array(list(product(range(3), repeat=len(terms))))  # (3^N, N)
    fits = (ways @ np.stack(terms) == found).all(axis=1)
    return ways[fits][0].tolist() if fits.sum() == 1 else None


def _described(other: str, counts: list[int]) -> str:
    """A sum in words.

    >>> _described("", [2, 0, 1])
    "rank 1's part is missing, rank 0's part is counted twice"
    """
    facts = [f"it holds the sum of {other}"] if other else []
    for count, fact in ((0, "missing"), (2, "counted twice")):
        ranks = [str(rank) for rank, of_rank in enumerate(counts) if of_rank == count]
        if len(ranks) == 1:
            facts.append(f"rank {ranks[0]}'s part is {fact}")
        elif ranks:
            facts.append(f"the parts of ranks {', '.join(ranks[:-1])} and {ranks[-1]} are {fact}")
    return ", ".join(facts)
