"""Columns of a table without what they repeat.

A number is written once for all sliders that it does not depend on. One that follows from others, but for its rounding,
is written as what it differs from them in its last digit: mostly 0, of which gzip makes little.
"""

from math import prod

import numpy as np

LONGEST = 9  # digits of a number


def packed_column(values: np.ndarray, sizes: tuple[int, ...]) -> tuple[list[int], list]:
    """The strides of each slider in the shortened column, 0 where the numbers do not depend on it, and the numbers.

    Illegal positions, which are NaN, take any number: nobody looks them up.
    """
    cube = values.reshape(sizes)
    for axis in range(len(sizes)):
        least, most = np.fmin.reduce(cube, axis, keepdims=True), np.fmax.reduce(cube, axis, keepdims=True)
        if np.array_equal(least, most, equal_nan=True):
            cube = least
    strides = [0 if size == 1 else prod(cube.shape[axis + 1 :]) for axis, size in enumerate(cube.shape)]
    return strides, _numbers(cube.ravel())


def corrections(values: np.ndarray, foretold: np.ndarray, digits: int) -> np.ndarray:
    """What rounded numbers differ from those that are foretold: units of their last digit, rarely parts of one.

    Both together are nearer to the number than half a unit, and round to it whatever rounding errors a browser makes.
    """
    unit, least = _last(foretold, digits), _last(values, digits)
    exact = found = (values - foretold) / unit
    for places in (2, 1, 0):
        few = np.round(exact, places)
        found = np.where(np.abs(foretold + few * unit - values) < 0.499 * least, few, found)
    return found


def _last(values: np.ndarray, digits: int) -> np.ndarray:
    """A unit of the last digit; it grows just above a power of ten, which a sum may miss by a rounding error."""
    return 10.0 ** (np.floor(np.log10(values) - 1e-4) - digits + 1)


def rounded(values: np.ndarray, digits: int) -> np.ndarray:
    """Round to ``digits`` significant digits; a gap is NaN, and stays one."""
    sizes = np.abs(values)
    powers = 10.0 ** (digits - 1 - np.floor(np.log10(np.where(sizes > 0, sizes, 1))))
    return np.round(values * powers) / powers


def _numbers(values: np.ndarray) -> list[float | int]:
    """The numbers as they are written: short, and a gap repeats the number before it, which gzip finds again."""
    found, last = [], 0
    for value in values.tolist():
        if value == value:
            last = float(f"{value:.{LONGEST}g}")
            last = int(last) if last == int(last) else last
        found.append(last)
    return found
