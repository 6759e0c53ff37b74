"""CuPy's functions, with the arguments that it documents, computed by NumPy."""

from itertools import count

import numpy as np

from cupy import kernel
from cupy.arrays import KINDS, SIGNATURES, checked, function, ndarray, shows, unwrap, wrap
from cupy.traffic import crossing, launched

TRANSFERS = "array", "asarray", "ascontiguousarray"  # take arrays in host memory too


def transfer(name: str, parameters: str):
    check, compute = checked(name, parameters), getattr(np, name)

    def call(array, *args, **kwargs):
        check((array, *args), kwargs)
        kwargs.pop("blocking", None)
        if isinstance(array, ndarray):
            found = compute(array._host, *args, **kwargs)
            if not shows(found, array._host):
                launched(name)
            return wrap(found)
        crossing("to device")
        return wrap(np.array(compute(array if isinstance(array, np.ndarray) else unwrap(array), *args, **kwargs)))

    return call


orders = map(np.random.default_rng, count())  # a generator for each call


class ufunc:
    """An elementwise function. It takes ``out``, ``dtype`` and ``casting``; CuPy has no ``where`` here."""

    def __init__(self, name: str) -> None:
        self.__name__, self._compute = name, getattr(np, name)

    def __call__(self, *args, out=None, dtype=None, casting="same_kind"):
        options = {"casting": casting} | ({} if dtype is None else {"dtype": dtype})
        found = kernel.launch(self._compute, *map(unwrap, args), out=unwrap(out), **options)
        return wrap(found) if out is None else out

    def at(self, a: ndarray, indices, values) -> None:
        """Adds in another order at each call, as atomic additions do."""
        launched(f"{self.__name__}.at")
        index, values = unwrap(indices), unwrap(values)
        if isinstance(index, np.ndarray) and index.dtype != bool and index.ndim:
            order = next(orders).permutation(len(index))
            index, values = index[order], np.broadcast_to(values, (*index.shape, *a.shape[1:]))[order]
        self._compute.at(a._host, index, values)


FUNCTIONS = {
    name: (transfer if name in TRANSFERS else function)(name, parameters)
    for name, parameters in SIGNATURES["functions"].items()
}
FUNCTIONS |= {name: ufunc(name) for name in SIGNATURES["ufuncs"].split() if hasattr(np, name)}
TYPES = {np.dtype(kind).type.__name__: np.dtype(kind).type for kind in KINDS}
