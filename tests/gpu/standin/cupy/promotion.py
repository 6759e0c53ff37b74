"""Which dtype an elementwise function of CuPy computes in, and refuses what NumPy would compute in another one."""

from functools import cache

import numpy as np

NUMBERS = {int: np.int64, float: np.float64, complex: np.complex128}  # Python's: they take over an array's dtype
KINDS = "b", "iu", "fc"  # in the order in which they take in one another


def check(name: str, loops: str, compute, inputs: tuple) -> None:
    """Raises TypeError unless CuPy and NumPy return the same dtype for these inputs.

    Args:
        name, loops: of CuPy's function, and its dtypes: "ff->f dd->d", the first that fits is used.
        compute: NumPy's ufunc of that name.
        inputs: NumPy's arrays and numbers.
    """
    _check(name, loops, compute, tuple(type(one) if type(one) in NUMBERS else np.asarray(one).dtype for one in inputs))


@cache
def _check(name: str, loops: str, compute, types: tuple) -> None:
    found = _loop(loops, types)
    given = ", ".join(one.__name__ if isinstance(one, type) else str(one) for one in types)
    if found is None:
        raise TypeError(f"Wrong type ({given}) of arguments for cupy_{name}")
    expected = compute.resolve_dtypes((*types, *[None] * compute.nout))[compute.nin :]
    if found != expected:
        raise TypeError(f"{name}({given}) is {found} for CuPy and {expected} for NumPy: convert an argument first")


def _loop(loops: str, types: tuple) -> tuple | None:
    """The results' dtypes in the first loop that takes these inputs (``_Ops._guess_routine_from_in_types`` in CuPy).

    A Python number fits a loop of its kind, provided that an array is of that kind (``_check_should_use_weak_scalar``).
    """
    kinds = [[_kind(one) for one in types if isinstance(one, type) == weak] for weak in (False, True)]
    adapts = all(kinds) and max(kinds[0]) >= max(kinds[1])
    for loop in loops.split():
        before, after = loop.split("->")
        if all(_fits(one, np.dtype(char), adapts) for one, char in zip(types, before, strict=True)):
            return tuple(map(np.dtype, after))
    return None


def _fits(one, dtype: np.dtype, adapts: bool) -> bool:
    if not isinstance(one, type):
        return np.can_cast(one, dtype)
    return np.can_cast(NUMBERS[one], dtype) or (adapts and np.result_type(one(0), dtype) == dtype)


def _kind(one) -> int:
    kind = np.dtype(NUMBERS.get(one, one)).kind
    return next(place for place, kinds in enumerate(KINDS) if kind in kinds)
