"""Prints where CuPy's elementwise functions return other dtypes than NumPy's: ``python promotion.py``.

CuPy can be imported without a GPU, and asked which of a function's loops it would take. The stand-in computes in
NumPy's dtypes, so it stands for CuPy only if there is no difference.
"""

import sys
from itertools import product
from pathlib import Path

import numpy as np

DTYPES = [*map(np.dtype, "?BHIbilefd"), int, float]  # Python's numbers take over an array's dtype, so they stay types
NUMBERS = {int: np.dtype(np.int64), float: np.dtype(np.float64)}
KINDS = ("b", "iu", "f")  # in the order in which they take in one another


def compared(cupy):
    """Each function and set of dtypes that both take, and the dtypes that CuPy and NumPy return."""
    for name in sorted(vars(cupy)):
        ours, numpys = getattr(cupy, name), getattr(np, name, None)
        if isinstance(ours, cupy.ufunc) and isinstance(numpys, np.ufunc):
            for types in product(DTYPES, repeat=ours.nin):
                found, expected = in_cupy(ours, types), in_numpy(numpys, types)
                if found and expected:
                    yield name, types, found, expected


def in_numpy(ufunc: np.ufunc, types: tuple) -> tuple | None:
    try:
        return ufunc.resolve_dtypes((*types, *[None] * ufunc.nout))[ufunc.nin :]
    except TypeError:
        return None


def in_cupy(ufunc, types: tuple) -> tuple | None:
    """Ask as ``_Ops.guess_routine`` does, which itself takes arrays: cupy/_core/_kernel.pyx."""
    arrays, numbers = ([kind(one) for one in types if (one in NUMBERS) == number] for number in (False, True))
    adapt = arrays and numbers and max(arrays) >= max(numbers)  # ``_check_should_use_weak_scalar``
    weak = tuple(one if adapt and one in NUMBERS else False for one in types)
    loop = ufunc._ops._guess_routine_from_in_types(tuple(NUMBERS.get(one, one) for one in types), weak)
    return loop and tuple(np.dtype(one) for one in loop.out_types)


def kind(one) -> int:
    return next(place for place, kinds in enumerate(KINDS) if NUMBERS.get(one, one).kind in kinds)


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # or the stand-in would be found
    import cupy

    cases = list(compared(cupy))
    wrong = [case for case in cases if case[2] != case[3]]
    print(*wrong, f"{len(cases)} compared, {len(wrong)} differ", sep="\n")
