"""Softmax in pieces whose sum does not depend on their order.

An online softmax (Milakov & Gimelshein, 2018) sees the scores of a row tile by tile. It keeps the largest score so far,
M, and sums of the weights e^(s - M); a larger maximum rescales what has been summed. In floating point each rescaling
rounds, so the bits depend on the order in which the tiles arrive. Here they do not:

- Scores are taken in base 2, x = s log2(e), so a weight is 2^x. With x = n + f, n an integer and 0 <= f <= 1, it is
  2^f 2^n: one rounded number, times a power of two.
- M is an integer. So every rescaling multiplies by a power of two, which is exact.
- The sums of weights, and of weighted values, are kept as two float64 each (``Total``): an error of 2^-104 where the
  weights of a row may spread too far for one float64. They are rounded to float32 once.

A tile's own sums depend on the tile alone. So two orders could only differ if a sum lay within 2^-104 of its size from
a place where the rounding to float32 changes: with 24 bits left of it, a chance of 2^-80 for one number.
"""

from math import e, log2

from minidist.backend import xp
from minidist.nn.kernels import rounded
from minidist.nn.precision.policy import current

EXPONENT = "int32"  # the dtype of M
LOG2E = log2(e)
LEAST = -2000  # smaller exponents make no difference: 2^-2000 is 0
EACH = (slice(None),) * 3  # all of (B, T, D), after the axis of the heads
HIDDEN = -(2.0**100)  # a score whose weight is 0 next to that of any other


def exponent_of(scores, axis: int):
    """Return the least integer that no score (in base 2) along ``axis`` exceeds: float32; the axis stays, length 1."""
    return xp.ceil(scores.max(axis=axis, keepdims=True))


def weights(scores, exponent):
    """Return 2^(x - M) for scores x in base 2 and an integer M: the same bits times a power of two, whatever M is.

    Args:
        scores: float32, in base 2.
        exponent: M, integers that broadcast with the scores.
    """
    whole = xp.floor(scores)
    result = scores - whole  # from 0 to 1
    current().functions.exp2(result, out=result)
    whole -= exponent.astype(whole.dtype, copy=False)
    return xp.ldexp(result, xp.maximum(whole, LEAST).astype(xp.int32))


class Total:
    """Sum of float32 arrays times powers of two, kept as the unevaluated sum of two float64 arrays: high and low.

    Args:
        shape: shape of the arrays.

    Attributes:
        parts: the arrays high and low.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.parts = xp.zeros(shape), xp.zeros(shape)

    def scale(self, exponent) -> None:
        """Multiply by 2^exponent, an int32 array that broadcasts: exact."""
        for part in self.parts:
            xp.ldexp(part, exponent, out=part)

    def add(self, term, rows: slice = slice(None)) -> None:
        """Add an array to some rows. The rounding error is computed (Knuth's TwoSum) and added to ``low``."""
        high, low = (part[..., rows, :] for part in self.parts)
        total = high + term
        part = total - high
        low += (high - (total - part)) + (term - part)
        high[...] = total

    def merge(self, other: "Total") -> None:
        """Add another sum of the same shape."""
        high, low = other.parts
        self.add(high)
        self.parts[1][...] += low

    @classmethod
    def of(cls, arrays) -> "Total":
        """Return the sum that has these arrays as its parts."""
        total = cls(())
        total.parts = tuple(arrays)
        return total

    def at(self, index) -> "Total":
        """Return the part of the sum at an index, a view: additions to it change this sum."""
        return self.of([part[index] for part in self.parts])

    def add_heads(self, total: "Total", heads: slice, share: int) -> None:
        """Add h heads' sums, (..., h, B, T, D), to those of their groups of ``share`` heads, (..., G, B, T, D)."""
        for first in range(heads.start, min(heads.start + share, heads.stop)):  # a head of each group
            groups = slice(first // share, (heads.stop - 1 - first) // share + first // share + 1)
            for part in total.parts:
                self.at((..., groups, *EACH)).add(part[(..., slice(first - heads.start, None, share), *EACH)])

    def arrays(self):
        """Return the parts in one array, (2, ...), as a message."""
        return xp.stack(self.parts)

    def rounded(self, dtype):
        """Return the sum, rounded once."""
        high, low = self.parts
        return rounded(high + low, dtype)


class OnlineSoftmax:
    """Weighted sums of some rows, (..., rows, D), over the tiles seen so far.

    Args:
        shape: shape of the result, (..., rows, D).

    Attributes:
        exponent: M of each row, (..., rows, 1) int32.
        weight, value: the sums of weights (..., rows, 1) and of weighted values (..., rows, D), times 2^-M.
    """

    Total, exponent_dtype, least = Total, EXPONENT, 2 * LEAST

    def __init__(self, shape: tuple[int, ...]) -> None:
        rows = *shape[:-1], 1
        self.exponent = xp.full(rows, self.least, self.exponent_dtype)
        self.weight, self.value = self.Total(rows), self.Total(shape)

    @staticmethod
    def scaled(term, exponent):
        """Return a float32 term times 2^exponent: exact in float64."""
        return xp.ldexp(term.astype(xp.float64), exponent)

    def merge(self, exponent, weight, value) -> None:
        """Add a tile: its own M, and the sums of its weights and of its weighted values, times 2^-M, float32."""
        exponent = exponent.astype(self.exponent_dtype, copy=False)
        larger = xp.maximum(self.exponent, exponent)
        for total, term in ((self.weight, weight), (self.value, value)):
            total.scale(self.exponent - larger)
            total.add(self.scaled(term, exponent - larger))
        self.exponent = larger

    def result(self, dtype):
        """Return (the weighted mean of the values, the sum of weights (..., rows, 1)), rounded."""
        weight = self.weight.rounded(dtype)
        return self.value.rounded(dtype) / weight, weight
