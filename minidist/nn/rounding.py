"""From a float64 sum to a float32, the same in whatever order the sum was taken."""

from minidist.backend import xp

CHUNK = 1 << 15  # elements that four passes go over while the cache holds them


def rounded(total, dtype):
    """A float64 sum rounded to ``dtype``, C-contiguous; what is no more precise than that is only converted.

    A sum of a few float32 numbers often lies exactly in the middle between two of them. Then a term of 2^-58, which one
    order of adding keeps and another one loses, would decide which of the two it becomes. So a float32 is not made of
    all of a sum's 53 bits, but of its 43 highest, rounded (Veltkamp's splitting, in Dekker, 1971), to which such a term
    does not reach.
    """
    if xp.dtype(dtype).itemsize >= total.dtype.itemsize:
        return total.astype(dtype, copy=False)
    flat, result = total.reshape(-1), xp.empty(total.size, dtype)
    for start in range(0, total.size, CHUNK):
        part = flat[start : start + CHUNK]
        high = part * (2.0**10 + 1)
        high -= high - part  # the 43 highest bits of each
        result[start : start + CHUNK] = high
    return result.reshape(total.shape)
