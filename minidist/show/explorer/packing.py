"""Columns of a table without what they repeat: a number is written once for all sliders that it does not depend on."""

from math import prod

import numpy as np

DIGITS = 3


def packed_column(values: list[float | None], sizes: tuple[int, ...], digits: int = DIGITS) -> tuple[list[int], list]:
    """The strides of each slider in the shortened column, 0 where the numbers do not depend on it, and the numbers.

    Illegal positions take any number: nobody looks them up.
    """
    rounded = [np.nan if value is None else float(f"{value:.{digits}g}") for value in values]
    cube = np.array(rounded).reshape(sizes)
    for axis in range(len(sizes)):
        with np.errstate(invalid="ignore"):
            least, most = np.fmin.reduce(cube, axis, keepdims=True), np.fmax.reduce(cube, axis, keepdims=True)
        if np.array_equal(least, most, equal_nan=True):
            cube = least
    strides = [0 if size == 1 else prod(cube.shape[axis + 1 :]) for axis, size in enumerate(cube.shape)]
    return strides, _numbers(cube.ravel())


def _numbers(values: np.ndarray) -> list[float | int]:
    """With what was there before in place of a gap: gzip finds that again."""
    found, last = [], 0
    for value in values.tolist():
        if value == value:
            last = int(value) if value == int(value) else value
        found.append(last)
    return found
