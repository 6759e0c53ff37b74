"""Sums, maxima and counts whose bits depend on nothing but what is added: NumPy's, or CuPy's in a fixed order.

**Bits.** CuPy's own kernel adds in an order that the number of terms decides and, if the terms of neighbouring results
lie side by side in memory, the number of results up to 32 (``_get_contiguous_size`` and ``_get_block_specs`` in
cupy/_core/_reduction.pyx). So a sum over the last axis depends on its length alone, and ``x.sum(axis=-1)`` is right. A
sum over another axis is ``column_sums``.

Two other ways to add, which CuPy would take, are avoided. CUB loads four numbers at once where the address of a row
allows, and adds in another order where it does not (``AgentReduce`` in cub/agent/agent_reduce.cuh), so ``backend.find``
switches it off. ``einsum`` makes one batched matrix product of all rows, whose kernel depends on how many are here, so
dot products are ``dot_each``. And atomic additions have no order at all: ``add_at`` is for sums that are rounded
afterwards (rounding.py), so that the order does not show.
"""

from functools import cache
from types import ModuleType

from minidist.backend import xp
from minidist.fused import OPTIONS, fused

ROW = 1024  # elements of a row of ``reduced``


def dot_each(a, b):
    """The dot products of the rows of two arrays: (..., n) and (..., n) of one dtype -> (...)."""
    if xp.name == "numpy":
        return xp.einsum("...n,...n->...", a, b)
    return _dot_kernel(xp.module)(xp.ascontiguousarray(a), xp.ascontiguousarray(b), axis=-1)


@cache
def _dot_kernel(cupy: ModuleType):
    """One kernel for all of them, which adds in the order of CuPy's sums."""
    return cupy.ReductionKernel(
        "T x, T y", "T out", "x * y", "a + b", "out = a", "0", "dot_each", options=OPTIONS
    )  # fmt: skip


def column_sums(values):
    """The sums over the last axis but one: (..., n, m) -> (..., m).

    A GPU adds term by term. So does NumPy, except for a single column, which it adds pairwise.
    """
    sums = xp.empty((*values.shape[:-2], values.shape[-1]), values.dtype)
    _column_sums(values, *values.shape[-2:], sums)
    return sums


@fused(
    "raw T values, int64 rows, int64 columns",
    "T total",
    """
    ptrdiff_t first = i / columns * rows * columns + i % columns;
    T sum = 0;
    for (ptrdiff_t row = 0; row < rows; ++row) sum += values[first + row * columns];
    total = sum;
    """,
)
def _column_sums(values, rows, columns, total):
    values.sum(axis=-2, out=total)


def counts_of(values, count: int):
    """How often each of the integers below ``count`` is among ``values`` (n,): integers (count,).

    CuPy's ``bincount`` makes the host wait, to look at the least value and at the largest.
    """
    if xp.name == "numpy":
        return xp.bincount(values, minlength=count)
    return (values[:, None] == xp.arange(count)).sum(axis=0)


def reduced(reduce, array):
    """``reduce(array)`` over all elements: ``xp.max``, ``xp.min``, ``xp.all``, or ``xp.sum`` of integers.

    In any order these find the same. On a GPU rows come first, then their results: CuPy's kernel has one block of
    threads for each result, and would leave all but one of the multiprocessors idle.
    """
    if xp.name == "numpy" or array.size < 2 * ROW:
        return reduce(array)
    flat = array.reshape(-1)
    whole = array.size - array.size % ROW
    found, rest = reduce(flat[:whole].reshape(-1, ROW), axis=1), flat[whole:]
    return reduce(xp.concatenate((found, rest)) if rest.size else found)


def add_at(target, index, values) -> None:
    """``target[index] += values`` along the first axis, where indices may repeat (``np.add.at``)."""
    xp.add.at(target, index, values)
