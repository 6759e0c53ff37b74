"""An elementwise kernel of the device that does not exist."""

import numpy as np

from cupy.traffic import launched

SUBNORMAL = np.uint32(0x7FFFFF)  # the bits of the largest subnormal float32


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
    if out is not None and has_subnormal(out):
        out[...] = flushed(out)
    return flushed(found)


def has_subnormal(array: np.ndarray) -> bool:
    if array.dtype != np.float32:
        return False
    bits = np.atleast_1d(array).view(np.uint32) & np.uint32(0x7FFFFFFF)
    return bool(((bits - np.uint32(1)) < SUBNORMAL).any())  # of 0 it is the largest integer


def flushed(value):
    """Zeros of the same sign for subnormal float32 numbers."""
    if isinstance(value, np.float32):
        return value if abs(value) >= np.finfo(np.float32).tiny or value == 0 else np.copysign(np.float32(0), value)
    if not isinstance(value, np.ndarray) or not has_subnormal(value):
        return value
    return np.where(np.abs(value) < np.finfo(np.float32).tiny, np.copysign(np.float32(0), value), value)
