"""Columns of a table, packed without repetition.

A number is written once for all positions of a slider that it does not depend on. A number that others foretell, except
for its rounding, is written as its difference from the foretold one, in units of its last digit: mostly 0, which gzip
compresses well.
"""

from math import prod

import numpy as np

LONGEST = 9  # digits of a number


def packed_column(values: np.ndarray, sizes: tuple[int, ...]) -> tuple[list[int], list]:
    """Return the stride of each slider in the shortened column (0 if no number depends on it), and its numbers.

    Illegal positions, which are NaN, take any number: the page does not look them up.
    """
    cube = values.reshape(sizes)
    for axis in range(len(sizes)):
        least, most = np.fmin.reduce(cube, axis, keepdims=True), np.fmax.reduce(cube, axis, keepdims=True)
        if np.array_equal(least, most, equal_nan=True):
            cube = least
    strides = [0 if size == 1 else prod(cube.shape[axis + 1 :]) for axis, size in enumerate(cube.shape)]
    return strides, _numbers(cube.ravel())


def corrections(values: np.ndarray, foretold: np.ndarray, digits: int) -> np.ndarray:
    """Return rounded numbers less the foretold ones, in units of the last digit; rarely, a part of a unit.

    A foretold number plus its correction is within half a unit of the rounded number, so it rounds to that number
    despite the browser's rounding errors.
    """
    unit, least = _last(foretold, digits), _last(values, digits)
    exact = found = (values - foretold) / unit
    for places in (2, 1, 0):
        few = np.round(exact, places)
        found = np.where(np.abs(foretold + few * unit - values) < 0.499 * least, few, found)
    return found


def _last(values: np.ndarray, digits: int) -> np.ndarray:
    """Return a unit of the last digit. It grows just above a power of ten: a sum may miss the power by rounding."""
    return 10.0 ** (np.floor(np.log10(values) - 1e-4) - digits + 1)


def rounded(values: np.ndarray, digits: int) -> np.ndarray:
    """Round to ``digits`` significant digits; a gap, NaN, stays a gap."""
    sizes = np.abs(values)
    powers = 10.0 ** (digits - 1 - np.floor(np.log10(np.where(sizes > 0, sizes, 1))))
    return np.round(values * powers) / powers


def _numbers(values: np.ndarray) -> list[float | int]:
    """Return the numbers as written: short; a gap repeats the number before it, which gzip compresses well."""
    found, last = [], 0
    for value in values.tolist():
        if value == value:
            last = float(f"{value:.{LONGEST}g}")
            last = int(last) if last == int(last) else last
        found.append(last)
    return found
