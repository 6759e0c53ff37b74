"""Exact products: a sum in three orders, as floats and on one grid; then the rows of a product, alone and in a batch.

The sum is drawn bit by bit, in the 24 bits of a float32. Its grid is that of nn/exact.py, whose sums have the 53 bits
of a float64, with 29 bits fewer, so that sums fit 24. The product is not scaled down: its sums have all 53 bits.
"""

from math import fsum
from unittest.mock import patch

from minidist import trace
from minidist.nn import exact
from minidist.show.demos.exact.run import BUG, Sums, bits_without_room, candidates, check_rows, compared
from minidist.show.demos.exact.story import rows, three_orders
from minidist.show.stage.animation import Animation

__all__ = ["MOST", "animation"]
LEAST, MOST = 4, 8  # numbers in the sum: with fewer, three orders seldom give three sums


def animation(ranks: int, size: int, seed: int) -> Animation:
    """Sum ``size`` numbers in three orders, and multiply in a batch and row by row; ``ranks`` is 1."""
    if size < LEAST:
        raise ValueError(f"size, the numbers in the sum, must be from {LEAST} to {MOST}, got {size}")
    trace.start()
    try:
        right, wrong = pair(size, seed)
        blas, grid = compared("matmul", seed), compared("matmul_each", seed)
    finally:
        log = trace.stop()
    with patch.object(exact, "bits_of", bits_without_room):
        outgrown = compared("matmul_each", seed)
    stories = [three_orders(right), three_orders(wrong, BUG), rows(blas, grid, "", check_rows(grid, seed))]
    if outgrown.any():  # with a BLAS that adds in the same order for a row alone, the bug changes nothing
        stories.append(rows(blas, outgrown, BUG))
    return Animation("exact", "Exact products: sums that no order changes", tuple(stories), [log])


def pair(size: int, seed: int) -> tuple[Sums, Sums]:
    """Return the sums of some numbers on the grid and on the broken grid, where the three orders differ.

    Raises:
        RuntimeError: if no such numbers are found: the bug does no harm.
    """
    for right in candidates(size, seed):
        with patch.object(exact, "bits_of", bits_without_room):
            wrong = Sums.of(right.terms)
        ends = wrong.ends(wrong.rounded)
        if len({*ends}) > 1 and ends[0] != fsum(wrong.rounded):  # the bits that are drawn are those of the first order
            return right, wrong
    raise RuntimeError("the bug injected in the grid changes no bit: choose another size or seed")
