"""What graders have in common: numbers whose sums are exact, and assertions that tell a learner what came instead."""

import tracemalloc
from collections.abc import Callable, Sequence

import numpy as np

from minidist.analysis.replay import steps
from minidist.course.sandbox.student import Seen
from minidist.course.sandbox.violations import Tampering

SIZES = (2, 3, 4, 5, 7)  # numbers of ranks; an answer has to work for any
LARGE = 3 << 18  # float64 elements: more than any queue between two ranks holds


def numbers(rank: int, elements: int, seed: int = 0) -> np.ndarray:
    """Whole numbers in float64, (elements,), other ones on each rank: their sums are exact in any order."""
    return np.random.default_rng([seed, rank]).integers(-1000, 1000, elements).astype(np.float64)


def same(found, expected: np.ndarray, what: str) -> None:
    """Assert that an array is the right one, to the last bit, and say where it is not."""
    assert isinstance(found, np.ndarray) and found.dtype == expected.dtype, (
        f"{what}: it should be an array of {expected.dtype}, but is {getattr(found, 'dtype', type(found).__name__)}"
    )
    assert found.shape == expected.shape, f"{what}: shape {found.shape} where {expected.shape} is right"
    wrong = np.flatnonzero(found.ravel() != expected.ravel())
    assert not len(wrong), (
        f"{what}: element {wrong[0]} is {found.flat[wrong[0]]:.9g} where {expected.flat[wrong[0]]:.9g} is right"
        f" ({len(wrong)} of {found.size} elements differ)"
    )


def number(value, what: str):
    """The value, asserted to be a number: a forgotten ``return`` is told as that."""
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    assert is_number, f"{what} returns {value!r:.60}, where a number is asked for"
    return value


def bytes_sent(seen: Sequence[Seen]) -> np.ndarray:
    """(ranks, peers): the bytes that each rank sent to each other."""
    return np.stack([one.traffic.sent[:, 0] for one in seen])


def to_the_right_only(seen: Sequence[Seen]) -> None:
    """Assert that no rank sent bytes to any but its right neighbour."""
    sent = bytes_sent(seen)
    for rank, row in enumerate(sent):
        wrong = [peer for peer in np.flatnonzero(row) if peer != (rank + 1) % len(sent)]
        assert not wrong, f"rank {rank} of {len(sent)} sends to rank {wrong[0]}, which is not its right neighbour"


def in_steps(seen: Sequence[Seen], expected: int) -> None:
    """Assert that the messages take no more steps, one after another where one has to wait for another."""
    taken = steps([one.log for one in seen])
    assert taken <= expected, f"{len(seen)} ranks take {taken} steps where {expected} are enough"


def peak_bytes(call: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy held at once of what they allocated during the call. For use in a rank."""
    tracemalloc.start()
    try:
        call()
        if not tracemalloc.is_tracing():
            raise Tampering("the answer ends the measurement of its memory")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
