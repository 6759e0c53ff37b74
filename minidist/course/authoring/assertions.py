"""Assertions and observers that graders share. A failed assertion says what was expected and what came instead.

Some assertions name ranks instead of numbers: whose part of a sum is missing, whose array arrived instead. They need
random numbers, such as those of ``values.numbers``, whose sums identify their terms.
"""

import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from itertools import product

import numpy as np

from minidist.analysis.replay import steps
from minidist.comm.group import ProcessGroup
from minidist.course.sandbox.forbidden import Tampering
from minidist.course.sandbox.in_rank import RankResult
from minidist.course.sandbox.values import working_dtype

SIZES = (2, 3, 4, 5, 7)  # numbers of ranks; an answer has to work for any
MANY = 9  # ranks: more than steps of 1, 2 and 4 reach
GROUPS = ((4, 2, 0), (3, 1))  # in a world of 5 ranks
LARGE = 3 << 18  # float64 elements: more than any queue between two ranks holds
FLOAT64 = 1e-12  # relative: the rounding of a handful of operations

MOST_RANKS = 7  # 3^7 ways to count each rank's part never, once or twice
PROBE = 8  # wrong elements that must all agree with one of these ways


def sizes(numbers: tuple[int, ...] = SIZES) -> tuple[int, ...]:
    """Return the numbers of ranks for a test that runs in every dtype: all in float64, only 3 in any other dtype."""
    return numbers if working_dtype() == np.float64 else (3,)


def compared(expected, found, because: str = "", digits: int = 6) -> str:
    """Return "expected ..., got ...", with all digits if fewer do not distinguish the two numbers.

    >>> compared(0.1 + 0.2, 0.3, ", the sum")
    'expected 0.30000000000000004, the sum, got 0.3'
    """
    right, came = (f"{value:,.{digits}g}" for value in (expected, found))
    if right == came:
        right, came = map(str, (expected, found))
    return f"expected {right}{because}, got {came}"


def same(found, expected: np.ndarray, what: str) -> None:
    """Assert that an array has the expected dtype, shape and values, and name the first element that differs."""
    assert isinstance(found, np.ndarray) and found.dtype == expected.dtype, (
        f"{what}: expected an array of {expected.dtype}, got {brief(found)}"
    )
    assert found.shape == expected.shape, f"{what}: expected shape {expected.shape}, got {found.shape}"
    wrong = np.flatnonzero(found.ravel() != expected.ravel())
    assert not len(wrong), (
        f"{what}: element {wrong[0]}: {compared(expected.flat[wrong[0]], found.flat[wrong[0]], digits=9)}"
        f" ({len(wrong)} of {found.size} elements differ)"
    )


def brief(value) -> str:
    """Describe a value of the wrong type: an array by its dtype and shape, anything else by 60 characters of repr."""
    return f"an array of {value.dtype}, shape {value.shape}" if isinstance(value, np.ndarray) else f"{value!r:.60}"


def number(value, what: str):
    """Assert that a value is a number, not the None of a forgotten ``return``; return it as a Python number.

    A comparison with a NumPy number would round: np.float32(0.1) == 0.1.
    """
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    assert is_number, f"{what}: expected a number, got {brief(value)}"
    return value.item() if isinstance(value, np.number) else value


def check_numbers(student, name: str, cases: dict[tuple, float], because: str) -> None:
    """Assert that a worksheet's function returns the expected number for each tuple of arguments, up to rounding."""
    import pytest  # not above: ranks import this file, and pytest would slow them down

    for args, found in zip(cases, student.call_each(name, list(cases)), strict=True):
        assert number(found, name) == pytest.approx(cases[args], rel=FLOAT64, abs=0), (
            f"{name}{args}: {compared(cases[args], found, f', {because}')}"
        )


def bytes_sent(results: Sequence[RankResult]) -> np.ndarray:
    """Return the bytes that each rank sent to each other rank.  (ranks, peers)"""
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
    """Return the most bytes that Python and NumPy allocate at once during the call. For use inside a rank."""
    tracemalloc.start()
    try:
        call()
        if not tracemalloc.is_tracing():
            raise Tampering("the answer stops the measurement of its memory")
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def in_groups(world, answers, run, *args):
    """Run in a group of ranks, then on all ranks, then in the group again; return the results of the last two runs."""
    group = world.new_group(list(next(ranks for ranks in GROUPS if world.rank in ranks)))
    run(group, answers, *args)
    return [run(world, answers, *args), run(group, answers, *args)]


def by_group(results) -> list[tuple[int, int, object]]:
    """Return (rank, size, value) for each rank of ``in_groups``: first in the world, then in its group."""
    in_world = [(rank, len(results), one.value[0]) for rank, one in enumerate(results)]
    return in_world + [(n, len(ranks), results[rank].value[1]) for ranks in GROUPS for n, rank in enumerate(ranks)]


def trained(world, module, names: Sequence[str], config, layout) -> tuple[str, dict[str, int]]:
    """Train on a rank with these functions of ``module``; return the fingerprint, and how often each was called."""
    from minidist import overrides
    from minidist.train.result import RunOptions
    from minidist.train.trainer import train_rank

    overrides.override({name: getattr(module, name) for name in names})
    try:
        return train_rank(world, config, layout, RunOptions()).fingerprint, dict(overrides.calls)
    finally:
        overrides.override({})


def is_sum(
    found, parts: Sequence[np.ndarray], what: str, others: Mapping[str, Sequence[np.ndarray]] | None = None
) -> None:
    """Assert that an array is the sum of all ranks' parts; else say whose part is missing or counted twice.

    Args:
        found: the array to check.
        parts: the array that each rank contributes.
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
    """Assert that an array equals the copy named ``right``; else say which other copy it is.

    Args:
        copies: arrays by name, such as "rank 1's" or "what was there before".
    """
    expected = copies[right]
    if isinstance(found, np.ndarray) and found.dtype == expected.dtype and not np.array_equal(found, expected):
        for name, other in copies.items():
            assert not np.array_equal(found, other), f"{what}: expected {right}, got {name}"
    same(found, expected, what)


def _counts(found: np.ndarray, terms: Sequence[np.ndarray]) -> list[int] | None:
    """Return how often each rank's part is in a sum; None if that is not clear, or for more than MOST_RANKS ranks."""
    if len(terms) > MOST_RANKS:
        return None
    ways = np.array(list(product(range(3), repeat=len(terms))))  # (3^N, N)
    fits = (ways @ np.stack(terms) == found).all(axis=1)
    return ways[fits][0].tolist() if fits.sum() == 1 else None


def _described(other: str, counts: list[int]) -> str:
    """Describe a sum in words.

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


def observe_collectives(group: ProcessGroup, on_call: Callable[[str, int, bool], None]) -> None:
    """Call ``on_call(name, nbytes, async_op)`` whenever a collective of this group is called, before it runs."""
    run_collective = group.run_collective

    def observed(description: str, body: Callable, async_op=False, nbytes=0, kind: tuple | None = None):
        on_call(description.partition("(")[0], nbytes, async_op)
        return run_collective(description, body, async_op, nbytes, kind)

    group.run_collective = observed
