"""Columns of a table without what they repeat: a number is written once for all sliders that it does not depend on."""

from collections.abc import Sequence
from math import prod

import numpy as np


def packed_column(values: Sequence[float | None], sizes: tuple[int, ...], digits: int) -> tuple[list[int], list]:
    """The strides of each slider in the shortened column, 0 where the numbers do not depend on it, and the numbers.

    Illegal positions take any number: nobody looks them up.
    """
    with_gaps = np.array([np.nan if value is None else value for value in values], np.float64)
    cube = _rounded(with_gaps, digits).reshape(sizes)
    for axis in range(len(sizes)):
        least, most = np.fmin.reduce(cube, axis, keepdims=True), np.fmax.reduce(cube, axis, keepdims=True)
        if np.array_equal(least, most, equal_nan=True):
            cube = least
    strides = [0 if size == 1 else prod(cube.shape[axis + 1 :]) for axis, size in enumerate(cube.shape)]
    return strides, _numbers(cube.ravel(), digits)


def _rounded(values: np.ndarray, digits: int) -> np.ndarray:
    """Round to ``digits`` significant digits; a gap is NaN, and stays one."""
    sizes = np.abs(values)
    powers = 10.0 ** (digits - 1 - np.floor(np.log10(np.where(sizes > 0, sizes, 1))))
    return np.round(values * powers) / powers


def _numbers(values: np.ndarray, digits: int) -> list[float | int]:
    """The numbers as they are written: short, and a gap repeats the number before it, which gzip finds again."""
    found, last = [], 0
    for value in values.tolist():
        if value == value:
            last = float(f"{value:.{digits}g}")
            last = int(last) if last == int(last) else last
        found.append(last)
    return found
