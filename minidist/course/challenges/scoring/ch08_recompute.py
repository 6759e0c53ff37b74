"""Chapter 8: which activations to keep and which to compute again, for the fewest operations."""

from collections.abc import Sequence

from minidist.course.challenges.challenge import Challenge, words
from minidist.course.sandbox.student import Student

# (the forward FLOPs of each block, in any unit; how many blocks' inputs fit)
CASES = (
    ((1,) * 24, 4),
    ((1,) * 48, 6),
    ((1,) * 30, 2),
    (tuple(1 + i % 3 for i in range(32)), 5),
    (tuple(range(1, 25)), 4),
    (tuple(8 if i % 8 == 7 else 1 for i in range(40)), 7),
)


def score(student: Student) -> float:
    """Recomputed operations in percent of one forward pass, the mean over models."""
    return sum(_again(student, list(flops), slots) for flops, slots in CASES) / len(CASES)


def _again(student: Student, flops: list[int], slots: int) -> float:
    plan = words(student.call("plan_recomputation", list(flops), slots), "a plan")
    total = sum(flops)
    return 100 * (forward_flops(plan, flops, slots) - (total - flops[-1])) / total


def forward_flops(plan: Sequence[str], flops: Sequence[int], slots: int) -> int:
    """Check a plan and return the operations of all its forwards.

    Raises:
        AssertionError: if a step needs a missing input, more inputs are kept than fit, or a block has no backward.
    """
    last = len(flops) - 1
    kept, hand = {0}, None  # blocks whose inputs are kept; the block whose input has just been computed
    behind, spent = last, 0  # the block whose backward comes next, from the last to the first
    for place, step in enumerate(plan):
        kind, number = step[:1], step[1:]
        valid = kind in ("F", "K", "D", "B") and number.isascii() and number.isdecimal() and int(number) <= last
        assert valid, f"step {place} is {step!r:.20}: expected F, K, D or B and a block, 0 to {last}"
        block = int(number)
        there = block in kept or block == hand
        if kind == "F":
            assert there, f"step {place}, {step}: the input of block {block} is not there"
            assert block < last, f"step {place}, {step}: nobody needs the output of the last block; B computes it"
            hand, spent = block + 1, spent + flops[block]
        elif kind == "K":
            assert block == hand, f"step {place}, {step}: the input of block {block} has not just been computed"
            kept.add(block)
            assert len(kept) <= slots, f"step {place}, {step}: {len(kept)} inputs are kept, but only {slots} fit"
        elif kind == "D":
            assert block in kept, f"step {place}, {step}: the input of block {block} is not kept"
            kept.remove(block)
        else:
            assert block == behind, f"step {place}, {step}: the next backward is B{behind}"
            assert there, f"step {place}, {step}: the input of block {block} is not there"
            behind, hand = behind - 1, None
    assert behind < 0, f"the plan ends before B{behind}"
    return spent


CHALLENGE = Challenge(
    chapter=8,
    name="recompute",
    what="plan",
    title="The fewest recomputed operations in a given memory",
    rule="A chain of blocks goes forward and backward. A given number of blocks' inputs can be kept at once; what is "
    "missing in backward is computed again from one that was kept. The score is the operations computed again, in "
    "percent of one forward pass, for several models.",
    unit="%",
    library=316.4,
    known=133.1,
    idea='Keep inputs again while recomputing, by dynamic programming: Griewank and Walther, "Algorithm 799: revolve" '
    '(2000); for blocks that differ: Beaumont et al., "Optimal Re-Materialization Strategies" (2024)',
    score=score,
)
