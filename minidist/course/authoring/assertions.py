"""What graders share: numbers whose sums are exact, and assertions that say what was expected and what came."""

import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np

from minidist.analysis.replay import steps
from minidist.course.sandbox.student import RankResult
from minidist.course.sandbox.violations import Tampering

SIZES = (2, 3, 4, 5, 7)  # numbers of ranks; an answer has to work for any
LARGE = 3 << 18  # float64 elements: more than any queue between two ranks holds


def numbers(rank: int, elements: int, seed: int = 0) -> np.ndarray:
    """Whole numbers, different on each rank: their sums are exact in any order.  (elements,) float64"""
    return np.random.default_rng([seed, rank]).integers(-1000, 1000, elements).astype(np.float64)


def same(found, expected: np.ndarray, what: str) -> None:
    """Assert that an array has the expected dtype, shape and values, and name the first element that differs."""
    assert isinstance(found, np.ndarray) and found.dtype == expected.dtype, (
        f"{what}: expected an array of {expected.dtype}, got {getattr(found, 'dtype', type(found).__name__)}"
    )
    assert found.shape == expected.shape, f"{what}: expected shape {expected.shape}, got {found.shape}"
    wrong = np.flatnonzero(found.ravel() != expected.ravel())
    assert not len(wrong), (
        f"{what}: element {wrong[0]}: expected {expected.flat[wrong[0]]:.9g}, got {found.flat[wrong[0]]:.9g}"
        f" ({len(wrong)} of {found.size} elements differ)"
    )


def number(value, what: str):
    """The value, asserted to be a number; a forgotten ``return`` shows up here as None."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    assert is_number, f"{what}: expected a number, got {value!r:.60}"
    return value


def bytes_sent(results: Sequence[RankResult]) -> np.ndarray:
    """The bytes that each rank sent to each other rank.  (ranks, peers)"""
    return np.stack([result.traffic.sent[:, 0] for result in results])


def to_the_right_only(results: Sequence[RankResult]) -> None:
    """Assert that every rank sent bytes to its right neighbour only."""
    sent = bytes_sent(results)
    for rank, row in enumerate(sent):
        wrong = [peer for peer in np.flatnonzero(row) if peer != (rank + 1) % len(sent)]
        assert not wrong, f"rank {rank} of {len(sent)} sends to rank {wrong[0]}, which is not its right neighbour"


def in_steps(results: Sequence[RankResult], expected: int) -> None:
    """Assert that the longest chain of messages, each waiting for the one before, has at most ``expected`` steps."""
    taken = steps([result.log for result in results])
    assert taken <= expected, f"{len(results)} ranks: expected at most {expected} steps, got {taken}"


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy allocations of the call occupied at once. For use inside a rank."""
    tracemalloc.start()
    try:
        call()
        if not tracemalloc.is_tracing():
            raise Tampering("the answer stops the measurement of its memory")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
