"""A share of the elements: those of the largest magnitude, as they are.

Aji and Heafield, "Sparse Communication for Distributed Gradient Descent" (arXiv 1704.05021, 2017); Lin et al., "Deep
Gradient Compression" (arXiv 1712.01887, 2018), which sends one element in a thousand, and adds to it what such a small
share needs: momentum correction, local clipping and a warm-up of the share. Those are not here.
"""

from fractions import Fraction
from math import ceil

import numpy as np

from minidist.backend import xp
from minidist.overrides import overridable
from minidist.parallel.compression.method import Gathered


@overridable
def top_k(corrected, k: int) -> tuple:
    """The k elements of the largest magnitude, of equal ones those that come first. NaN counts as infinite.

    Args:
        corrected: flat float64.
        k: from 0 to their number.

    Returns:
        Their indices, int32, ascending, and their values, both (k,).
    """
    if k == 0:
        return xp.zeros(0, xp.int32), corrected[:0]
    magnitudes = xp.where(xp.isnan(corrected), xp.inf, xp.abs(corrected))
    place = corrected.size - k
    threshold = xp.partition(magnitudes, place)[place]  # the k-th largest, in linear time: nothing is sorted
    above = xp.flatnonzero(magnitudes > threshold)
    equal = xp.flatnonzero(magnitudes == threshold)[: k - above.size]
    indices = xp.sort(xp.concatenate([above, equal])).astype(xp.int32)
    return indices, corrected[indices]


class TopK(Gathered):
    """k indices as int32, then k values in the bucket's dtype; k is the share of a parameter's elements, rounded up."""

    def __init__(self, name: str, share: Fraction) -> None:
        super().__init__(name)
        self.share = share

    def why_it_differs(self, full_rank: int) -> str:
        if self.share == 1:
            return ""
        return f"compress={self.name} sends the largest elements of gradients only; topk:1 has the bits of one process"

    def count(self, size: int) -> int:
        """How many of so many elements are sent."""
        return ceil(self.share * size)

    def message_bytes(self, size: int, itemsize: int) -> int:
        return (4 + itemsize) * self.count(size)

    def encode(self, values, dtype, rng: np.random.Generator) -> list:
        indices, kept = top_k(values, self.count(values.size))
        return [indices, kept.astype(dtype)]

    def decode(self, message, size: int, dtype):
        end = 4 * self.count(size)
        values = xp.zeros(size)
        values[message[:end].view(xp.int32)] = message[end:].copy().view(dtype)  # copied, so that it is aligned
        return values
