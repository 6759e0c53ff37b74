"""Refuses sums and products whose bits, on a GPU, would depend on more than the numbers in them."""

import numpy as np

SIDE_BY_SIDE, TERMS = 32, 16  # minidist/reductions.py; up to so many terms are added in one order all the same
ALIGNMENT = 256  # bytes (minidist/products.py)


def check_sum(name: str, terms: np.ndarray, found, axis) -> None:
    """A float32 sum over an axis that is not the last: CuPy's order depends on how many results there are."""
    if name not in ("sum", "mean") or axis is None or getattr(found, "dtype", None) != np.float32:
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
