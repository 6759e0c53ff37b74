"""Chapter 5: what each layer shards, so that the model fits and the least is sent."""

from collections.abc import Sequence

from minidist.course.challenges.challenge import Challenge, geometric_mean, whole_numbers
from minidist.course.sandbox.student import Student

# (parameters of each unit in millions, ranks, micro-batches, memory of a rank in GB)
CASES = (
    ((50, *[14] * 24, 50), 8, 4, 1.6),
    ((50, *[14] * 24, 50), 8, 1, 1.3),
    ((130, *[28, 113] * 12, 130), 16, 2, 7.0),
    ((400, *range(20, 180, 5), 400), 32, 8, 9.0),
    (tuple(7 * (3 * i % 17 + 1) for i in range(40)), 4, 3, 11.5),
)
STAGES = (1, 2, 3)


def score(student: Student) -> float:
    """Megabytes that a rank sends in a step, the geometric mean over models."""
    return geometric_mean(_sent(student, *case) for case in CASES)


def _sent(student: Student, millions: Sequence[int], ranks: int, micro_batches: int, gigabytes: float) -> float:
    parameters, memory = [n * 10**6 for n in millions], int(gigabytes * 1e9)
    found = student.call("choose_shards", list(parameters), ranks, micro_batches, memory)
    assert isinstance(found, list | tuple) and len(found) == len(parameters), (
        f"expected a list with a pair for each of the {len(parameters)} units, got {found!r:.60}"
    )
    pairs = [whole_numbers(pair, 2, "a unit's pair (weights, gradients)") for pair in found]
    assert all(set(pair) <= {0, 1} for pair in pairs), (
        "a pair must hold 0 (whole) or 1 (sharded) for weights and for gradients"
    )
    needed = held_bytes(parameters, pairs, ranks)
    assert needed <= memory, f"{len(parameters)} units on {ranks} ranks: they hold {needed:,.0f} of {memory:,} bytes"
    return sent_bytes(parameters, pairs, ranks, micro_batches) / 1e6


def held_bytes(parameters: Sequence[int], pairs: Sequence[Sequence[int]], ranks: int) -> float:
    """Most bytes that a rank holds at once."""
    held = 0.0
    for size, (weights, gradients) in zip(parameters, pairs, strict=True):
        held += 12 * size / ranks + 2 * size / (ranks if weights else 1) + 2 * size / (ranks if gradients else 1)
    gathered = max((2 * size for size, pair in zip(parameters, pairs, strict=True) if pair[0]), default=0)
    unreduced = max((2 * size for size, pair in zip(parameters, pairs, strict=True) if pair[1]), default=0)
    return held + gathered + unreduced


def sent_bytes(parameters: Sequence[int], pairs: Sequence[Sequence[int]], ranks: int, micro_batches: int) -> float:
    """Bytes that a rank sends in a step, with rings."""
    collectives = 0.0
    for size, (weights, gradients) in zip(parameters, pairs, strict=True):
        collectives += 2 * size * (2 * micro_batches if weights else 1)  # all-gathers
        collectives += 2 * size * (micro_batches if gradients else 1)  # reduce-scatters
    return (ranks - 1) / ranks * collectives


CHALLENGE = Challenge(
    chapter=5,
    name="shards",
    what="choice of shards",
    title="The least traffic of a sharded model that fits into a given memory",
    rule="For each unit of parameters you choose whether its weights are sharded, and whether its gradients are; the "
    "optimizer's states always are. What is sharded costs a collective per micro-batch, what is whole costs memory. "
    "The score is the bytes that a rank sends in a step; the memory is a limit.",
    unit="MB",
    library=16989,
    known=12073,
    idea="Choose for each unit on its own, as a knapsack: Jiang et al., "
    '"OSDP: Optimal Sharded Data Parallel for Distributed Deep Learning" (2023)',
    score=score,
)
