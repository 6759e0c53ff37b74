"""Kernels of the device that does not exist: their bits, and sums and products whose bits would depend on layouts."""

import numpy as np

from cupy.traffic import launched

SMALLEST = np.finfo(np.float32).tiny  # of the numbers that are not subnormal
SIDE_BY_SIDE, TERMS = 32, 16  # minidist/nn/kernels.py; up to so many terms are added in one order all the same
ALIGNMENT = 256  # bytes (minidist/nn/kernels.py)


def launch(compute, *inputs, out=None, **options):
    """``compute(*inputs)`` of NumPy's arrays as CuPy's kernels do it: subnormal float32 numbers are zeros.

    CuPy compiles with ``-ftz=true`` (cupy/cuda/compiler.py). Dtypes are NumPy's (../promotion.py).
    """
    launched(compute.__name__)
    if out is not None:
        options["out"] = out
    found = compute(*map(flushed, inputs), **options)
    if isinstance(found, tuple):
        return tuple(map(flushed, found))
    if out is not None and (zeros := flushed(out)) is not out:
        out[...] = zeros
    return flushed(found)


def flushed(value):
    """Zeros of the same sign for subnormal float32 numbers."""
    if getattr(value, "dtype", None) != np.float32:
        return value
    subnormal = (np.abs(value) < SMALLEST) & (value != 0)
    return np.where(subnormal, np.copysign(np.float32(0), value), value) if subnormal.any() else value


def check_sum(name: str, found, arguments: tuple, options: dict) -> None:
    """A float32 sum over an axis that is not the last: CuPy's order depends on how many results there are."""
    if name not in ("sum", "mean") or getattr(found, "dtype", None) != np.float32:
        return
    terms, axis = arguments[0], arguments[1] if len(arguments) > 1 else options.get("axis")
    if axis is None:
        return
    axes = {one % terms.ndim for one in (axis if isinstance(axis, tuple) else (axis,))}
    many = terms.size // max(1, found.size) > TERMS
    if terms.ndim - 1 not in axes and 0 < found.size < SIDE_BY_SIDE and many:
        raise TypeError(
            f"cupy.{name} over axis {axis} of {terms.shape}: the order depends on how many results there are, "
            f"{found.size}; use reductions.column_sums"
        )


def check_factor(array) -> None:
    """A float32 factor of ``@`` that begins at any address: cuBLAS may choose another kernel than elsewhere."""
    if array.dtype == np.float32 and (array.data.ptr - array.data.mem.ptr) % ALIGNMENT:
        raise TypeError(f"cuBLAS may choose its kernel by the address of a view {array.shape}: use matmul_each")
