"""CuPy's functions, with the arguments that it documents, computed by NumPy."""

from itertools import count

import numpy as np

from cupy import kernel
from cupy.arrays import KINDS, SIGNATURES, checked, ndarray, shows, unwrap, wrap
from cupy.bits import check_sum
from cupy.traffic import crossing, launched

TRANSFERS = "array", "asarray", "ascontiguousarray"  # take arrays in host memory too
WAITS = "flatnonzero", "bincount"  # the host waits for the result's size
NO_KERNEL = "empty", "empty_like", "shape"


def function(name: str, parameters: str):
    check, compute = checked(name, parameters), getattr(np, name, None)

    def call(*args, **kwargs):
        check(args, kwargs)
        if name in WAITS:
            crossing("size")
        if kwargs.get("where", True) is None:
            del kwargs["where"]
        if "out" in kwargs and kwargs["out"] is not None and not isinstance(kwargs["out"], ndarray):
            raise TypeError(f"cupy.{name}: out must be a device array")
        inside = [unwrap(one) for one in args]
        found = compute(*inside, **{key: unwrap(one) for key, one in kwargs.items()})
        if inside and isinstance(inside[0], np.ndarray):
            check_sum(name, inside[0], found, inside[1] if len(inside) > 1 else kwargs.get("axis"))
        if name not in NO_KERNEL and not shows(found, *inside):
            launched(name)
        return kwargs["out"] if isinstance(kwargs.get("out"), ndarray) else wrap(found)

    call.__name__ = name
    return call


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
        on_device = wrap(np.array(compute(array if isinstance(array, np.ndarray) else unwrap(array), *args, **kwargs)))
        return on_device

    call.__name__ = name
    return call


def asnumpy(a, stream=None, order="C", out=None, *, blocking=True) -> np.ndarray:
    return a.get(order=order, out=out) if isinstance(a, ndarray) else np.asarray(a, order=order)


orders = map(np.random.default_rng, count())  # a generator for each call


class ufunc:
    """An elementwise function. It takes ``out``, ``dtype`` and ``casting``; CuPy has no ``where`` here."""

    def __init__(self, name: str) -> None:
        self.__name__, self._compute = name, getattr(np, name, None) or getattr(np, {"fix": "trunc"}.get(name, name))
        self.nin, self.nout = getattr(self._compute, "nin", 1), getattr(self._compute, "nout", 1)

    def __call__(self, *args, out=None, dtype=None, casting="same_kind"):
        if out is not None and not isinstance(out, ndarray):
            raise TypeError(f"cupy.{self.__name__}: out must be a device array")
        options = {"casting": casting} | ({} if dtype is None else {"dtype": dtype})
        into = None if out is None else out._host
        found = kernel.launch(self._compute, *map(unwrap, args), out=into, **options)
        return wrap(found) if out is None else out

    def at(self, a: ndarray, indices, values) -> None:
        """Adds in another order at each call, as atomic additions do."""
        if self.__name__ not in ("add", "maximum", "minimum"):
            raise NotImplementedError(f"cupy.{self.__name__}.at")
        launched(f"{self.__name__}.at")
        index, values = unwrap(indices), unwrap(values)
        if isinstance(index, np.ndarray) and index.dtype != bool and index.ndim:
            order = next(orders).permutation(len(index))
            index, values = index[order], np.broadcast_to(values, (*index.shape, *a.shape[1:]))[order]
        self._compute.at(a._host, index, values)


FUNCTIONS = {"asnumpy": asnumpy}
for _name, _parameters in SIGNATURES["functions"].items():
    if _name not in FUNCTIONS:
        FUNCTIONS[_name] = (transfer if _name in TRANSFERS else function)(_name, _parameters)
FUNCTIONS |= {_name: ufunc(_name) for _name in SIGNATURES["ufuncs"].split() if hasattr(np, _name)}
TYPES = {np.dtype(kind).type.__name__: np.dtype(kind).type for kind in KINDS}
