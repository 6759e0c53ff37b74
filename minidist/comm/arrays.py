"""Which arrays may travel, and how errors name them."""

from functools import cache

import numpy as np

from minidist import backend


def check_array(array, argument: str, function: str, written: bool = False) -> None:
    """Refuse an array that could not be moved correctly; the error names the argument and the fix.

    Raises:
        TypeError: not an array, or a dtype that is not numeric, bool or in native byte order.
        ValueError: not C-contiguous, or read-only although it is ``written``.
    """
    kind = type(array)
    if kind is not np.ndarray and kind not in (np.memmap, backend.xp.ndarray):  # a subclass may change what + means
        raise TypeError(f"{function}: {argument} must be an array, but is {kind.__name__}; wrap it in np.asarray()")
    dtype, flags = array.dtype, array.flags
    if dtype.kind not in "biufc" or not dtype.isnative:
        raise TypeError(
            f"{function}: {argument} must hold numbers or bools in native byte order, but its dtype is {dtype!r};"
            " convert it with .astype()"
        )
    if not flags.c_contiguous:
        raise ValueError(
            f"{function}: {argument} must be C-contiguous, but is a view with strides {array.strides}; "
            f"pass np.ascontiguousarray({argument})" + (" and copy the result back" if written else "")
        )
    if written and isinstance(array, np.ndarray) and not flags.writeable:
        raise ValueError(f"{function}: {argument} is written in place, but is read-only; pass a copy")


def overlap(a, b) -> bool:
    """Whether two contiguous arrays on one device share memory."""
    start_a, start_b = backend.address(a), backend.address(b)
    return start_a < start_b + b.nbytes and start_b < start_a + a.nbytes


@cache
def dtype_name(dtype: np.dtype) -> str:
    return dtype.name  # NumPy computes it anew each time, which takes longer than a small message
