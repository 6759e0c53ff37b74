"""The values that graders lend to answers: in the dtype of the test, and different in a rehearsal."""

from functools import lru_cache

import numpy as np

SMALL = 1 << 10  # elements; larger arrays are not cached

_dtype: np.dtype = np.dtype(np.float64)
_seed = 0


def use_dtype(dtype: str | None) -> None:
    """Make ``numbers`` and ``blank`` return arrays of this dtype; None for float64."""
    global _dtype
    _dtype = np.dtype(dtype or np.float64)


def use_seed(seed: int) -> None:
    """Make ``numbers`` return different values for each seed."""
    global _seed
    _seed = seed


def working_dtype() -> np.dtype:
    """Return the dtype of the test that runs."""
    return _dtype


def generator(*key: int) -> np.random.Generator:
    """Return a generator of random numbers that depend on the key, and differ in a rehearsal."""
    return np.random.default_rng([*key, _seed] if _seed else key)


def numbers(rank: int, elements: int, seed: int = 0) -> np.ndarray:
    """Return whole numbers that differ by rank; sums are exact in any order.  (elements,) of the working dtype"""
    make = _whole_numbers if elements <= SMALL else _whole_numbers.__wrapped__
    return make(rank, int(elements), seed, _seed).astype(_dtype)  # a copy


@lru_cache(maxsize=4096)  # making a generator takes longer than everything else in most tests
def _whole_numbers(rank: int, elements: int, seed: int, rehearsal: int) -> np.ndarray:
    return generator(seed, rank).integers(-1000, 1000, elements)


def many_digits(rank: int, elements: int, seed: int = 0) -> np.ndarray:
    """Return numbers like ``numbers``, but with so many digits that rounding float64 or int32 to float32 shows.

    Sums over 16 ranks are exact in any order; products are not.
    """
    coarse, fine = numbers(rank, elements, seed), numbers(rank, elements, seed + 1)
    if _dtype == np.float64:
        return coarse + fine / (1 << 20)
    return coarse * (1 << 16) + fine if _dtype == np.int32 else coarse


def blank(shape: int | tuple[int, ...]) -> np.ndarray:
    """Return an array to receive into, full of -1, of the working dtype."""
    return np.full(shape, -1, _dtype)


def nbytes(elements: int) -> int:
    """Bytes of ``elements`` elements of the working dtype."""
    return int(elements) * _dtype.itemsize
