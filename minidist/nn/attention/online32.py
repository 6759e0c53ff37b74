"""The online softmax that everybody else lives with: float32, and bits that depend on the order of the tiles.

It has the names of online_softmax.py. There M is an integer, so rescaling is exact, and sums are two float64; here M is
the largest score itself, each rescaling rounds, and so does each addition. ``--softmax online32`` trains with it.
(Milakov & Gimelshein, "Online normalizer calculation for softmax", 2018.)
"""

from minidist.backend import xp

EXPONENT = "float32"  # the dtype of M
LEAST = -1e30  # a score smaller than any


def exponent_of(scores, axis: int):
    """The largest score along ``axis``, which stays, with length 1."""
    return scores.max(axis=axis, keepdims=True)


def weights(scores, exponent):
    """2^(x - M) for scores x in base 2."""
    return xp.exp2(scores - exponent)


class Total:
    """A float32 sum.

    Args:
        shape: shape of the arrays that are added.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.sum = xp.zeros(shape, xp.float32)

    def add(self, term, rows: slice = slice(None)) -> None:
        """Add an array to some rows."""
        self.sum[..., rows, :] += term

    def merge(self, other: "Total") -> None:
        """Add another sum of the same shape."""
        self.sum += other.sum

    @classmethod
    def of(cls, arrays) -> "Total":
        """The sum that ``arrays`` made an array of."""
        total = cls(())
        (total.sum,) = arrays
        return total

    def at(self, index) -> "Total":
        """The part of the sum at an index, a view: what is added to it is added here."""
        return self.of((self.sum[index],))

    def arrays(self):
        """The sum as a message, (1, ...)."""
        return self.sum[None]

    def rounded(self, dtype):
        """The sum."""
        return self.sum.astype(dtype, copy=False)


class OnlineSoftmax:
    """The weighted sums of some rows, (..., rows, D), over the tiles seen so far.

    Args:
        shape: shape of the result, (..., rows, D).

    Attributes:
        exponent: M of each row, (..., rows, 1) float32.
        weight, value: the sums of weights (..., rows, 1) and of weighted values (..., rows, D), times 2^-M.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.exponent = xp.full((*shape[:-1], 1), LEAST, xp.float32)
        self.weight, self.value = xp.zeros((*shape[:-1], 1), xp.float32), xp.zeros(shape, xp.float32)

    def merge(self, exponent, weight, value) -> None:
        """Add a tile: its own M, and the sums of its weights and of its weighted values, times 2^-M."""
        larger = xp.maximum(self.exponent, exponent)
        before, now = xp.exp2(self.exponent - larger), xp.exp2(exponent - larger)
        self.weight = self.weight * before + weight * now
        self.value = self.value * before + value * now
        self.exponent = larger

    def result(self, dtype):
        """(the weighted mean of the values, the sum of weights (..., rows, 1))."""
        weight = self.weight.astype(dtype, copy=False)
        return self.value.astype(dtype, copy=False) / weight, weight
