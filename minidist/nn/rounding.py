"""Rounding of a float64 sum to a float32 that does not depend on the order of the sum."""

from minidist.backend import cache_blocks, xp
from minidist.fused import fused

CHUNK = 1 << 15  # elements, few enough to stay in the cache for four passes


def rounded(total, dtype):
    """Round a float64 sum to ``dtype``, C-contiguous; an array of that precision or less is only converted.

    A sum of a few float32 numbers often lies exactly halfway between two of them. Then a term of 2^-58, which one order
    of adding keeps and another one loses, would decide to which of the two it rounds. So a float32 is not made from all
    53 bits of a sum but from its 43 highest, rounded (Veltkamp's splitting, in Dekker, 1971), which such a term does
    not reach.
    """
    if xp.dtype(dtype).itemsize >= total.dtype.itemsize:
        return total.astype(dtype, copy=False)
    result = xp.empty(total.shape, dtype)
    _round_high_bits(total, result)
    return result


@fused("float64 total", "T result", "double high = total * 1025; result = high - (high - total);")
def _round_high_bits(total, result) -> None:
    flat, into = total.reshape(-1), result.reshape(-1)
    for block in cache_blocks(total.size, CHUNK):
        part = flat[block]
        high = part * (2.0**10 + 1)
        high -= high - part  # the 43 highest bits of each
        into[block] = high
