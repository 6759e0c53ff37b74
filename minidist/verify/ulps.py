"""Distances between floating-point numbers, counted in ulps.

An ulp (unit in the last place) is the step from one floating-point number to the next.
"""

from math import log10

import numpy as np

FARTHEST = np.iinfo(np.int64).max


def ulps_between(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Count the floats from each element of ``one`` to that of ``other``: negative where ``other`` is smaller.

    Equal bits are 0 apart, and so are 0.0 and -0.0. float64 numbers of opposite signs can be more than 2^63 steps
    apart; such a distance is given as 2^63 - 1.

    Args:
        one, other: arrays or scalars of one shape, both float32 or both float64.

    Returns:
        int64, of the same shape.

    Raises:
        ValueError: if the two differ in shape or dtype, or are not floating-point numbers.
    """
    one, other = np.asarray(one), np.asarray(other)
    if one.dtype != other.dtype or one.shape != other.shape or one.dtype.kind != "f":
        raise ValueError(
            "ulps are counted between floating-point arrays of one dtype and shape, "
            f"not between {one.dtype}{one.shape} and {other.dtype}{other.shape}"
        )
    start, end = _ordinals(one), _ordinals(other)
    negative = end < start
    with np.errstate(over="ignore"):  # exact modulo 2^64
        steps = np.maximum(start, end).astype(np.uint64) - np.minimum(start, end).astype(np.uint64)
    steps = np.minimum(steps, np.uint64(FARTHEST)).astype(np.int64)
    return np.where(negative, -steps, steps)


def in_words(ulps: int) -> str:
    """Return a distance as text: the exact count, or its order of magnitude from a million on."""
    ulps = abs(int(ulps))
    if ulps == 1:
        return "1 ulp"
    return f"{ulps:,} ulps" if ulps < 10**6 else f"about 10^{round(log10(ulps))} ulps"


def _ordinals(values: np.ndarray) -> np.ndarray:
    """Return an integer for each number, which grows by one from each floating-point number to the next."""
    bits = np.asarray(values, order="C").view(f"i{values.itemsize}").astype(np.int64)
    return np.where(bits >= 0, bits, -(1 << (8 * values.itemsize - 1)) - bits)
