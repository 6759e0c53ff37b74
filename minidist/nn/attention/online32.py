"""The usual online softmax: all in float32, with bits that depend on the order of the tiles.

It has the names of online_softmax.py. There M is an integer, so rescaling is exact, and sums are two float64; here M is
the largest score itself, each rescaling rounds, and so does each addition. ``--softmax online32`` trains with it.
(Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018.)
"""

from minidist.backend import xp
from minidist.nn.attention import online_softmax
from minidist.nn.precision.policy import current

EXPONENT = "float32"  # the dtype of M
LEAST = -1e30  # a score smaller than any


def exponent_of(scores, axis: int):
    """Return the largest score along ``axis``, which stays, with length 1."""
    return scores.max(axis=axis, keepdims=True)


def weights(scores, exponent):
    """Return 2^(x - M) for scores x in base 2."""
    return current().functions.exp2(scores - exponent)


class Total(online_softmax.Total):
    """Sum of arrays in float32.

    Args:
        shape: shape of the arrays that are added.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.parts = (xp.zeros(shape, xp.float32),)

    def scale(self, exponent) -> None:
        self.parts[0][...] *= current().functions.exp2(exponent)

    def add(self, term, rows: slice = slice(None)) -> None:
        self.parts[0][..., rows, :] += term

    def merge(self, other: "Total") -> None:
        self.parts[0][...] += other.parts[0]

    def rounded(self, dtype):
        return self.parts[0].astype(dtype, copy=False)


class OnlineSoftmax(online_softmax.OnlineSoftmax):
    """Weighted sums of some rows, (..., rows, D), over the tiles seen so far, all in float32."""

    Total, exponent_dtype, least = Total, EXPONENT, LEAST

    @staticmethod
    def scaled(term, exponent):
        return term * current().functions.exp2(exponent)
