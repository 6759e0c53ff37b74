"""An elementwise kernel of the device that does not exist: what CuPy's do otherwise than NumPy."""

import numpy as np

from cupy import promotion

SUBNORMAL = np.uint32(0x7FFFFF)  # the bits of the largest subnormal float32


def launch(name: str, loops: str, compute, *inputs, out=None, **options):
    """``compute(*inputs)`` as CuPy's function of that name: in the same dtype, without subnormal float32 numbers.

    Args:
        name, loops, compute: as of ``promotion.check``.
        inputs, out: NumPy's.
        options: ``dtype`` and ``casting``.
    """
    if "dtype" not in options and isinstance(compute, np.ufunc):
        promotion.check(name, loops, compute, inputs)
    if out is not None:
        options["out"] = out
    found = compute(*map(flushed, inputs), **options)
    if isinstance(found, tuple):
        return tuple(map(flushed, found))
    if out is not None and has_subnormal(out):
        out[...] = flushed(out)
    return flushed(found)


def has_subnormal(array: np.ndarray) -> bool:
    if array.dtype != np.float32:
        return False
    bits = np.atleast_1d(array).view(np.uint32) & np.uint32(0x7FFFFFFF)
    return bool(((bits - np.uint32(1)) < SUBNORMAL).any())  # of 0 it is the largest integer


def flushed(value):
    """Zeros for subnormal float32 numbers: CuPy compiles with ``-ftz=true`` (cupy/cuda/compiler.py)."""
    if isinstance(value, np.float32):
        return value if abs(value) >= np.finfo(np.float32).tiny or value == 0 else np.copysign(np.float32(0), value)
    if not isinstance(value, np.ndarray) or not has_subnormal(value):
        return value
    return np.where(np.abs(value) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), value), value)
