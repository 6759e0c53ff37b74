"""Kernels: what NumPy does in several lines or in any order, with the same bits on a GPU.

**Fused lines.** Each line of NumPy is a pass over memory. On a GPU it is also a kernel launch, some microseconds of the
host's time however small the array, and arithmetic waits for memory: ten lines take ten times as long as one. So the
lines that a training step runs most often are written twice, side by side: in NumPy, and in C for a single element.
With CuPy the C runs, for all elements in one pass (``cupy.ElementwiseKernel``).

Both have the same bits, but for ``tanh``, of which every library has its own, and for subnormal numbers, which CuPy's
kernels take for 0 (``-ftz=true``, cupy/cuda/compiler.py). They take the same steps, or others that are exact, and
``--fmad=false`` keeps the compiler from joining ``a * b + c`` into one operation that rounds once instead of twice.
Division and square root are rounded correctly on both sides: that is NVRTC's default (``--prec-div``, ``--prec-sqrt``).

**Sums.** CuPy's own kernel adds in an order that the number of terms decides and, if the terms of neighbouring results
lie side by side in memory, the number of results up to 32 (``_get_contiguous_size`` and ``_get_block_specs`` in
cupy/_core/_reduction.pyx). So a sum over the last axis depends on its length alone, and ``x.sum(axis=-1)`` is right. A
sum over another axis is ``column_sums``.

Two other ways to add, which CuPy would take, are avoided. CUB loads four numbers at once where the address of a row
allows, and adds in another order where it does not (``AgentReduce`` in cub/agent/agent_reduce.cuh), so ``backend.find``
switches it off. ``einsum`` makes one batched matrix product of all rows, whose kernel depends on how many are here, so
dot products are ``dot_each``. And atomic additions have no order at all: ``add_at`` is for float64 sums that are
``rounded`` afterwards, so that the order does not show.
"""

from collections.abc import Callable
from functools import cache, wraps
from types import ModuleType

from minidist.backend import cache_blocks, xp

OPTIONS = ("--fmad=false",)  # of NVIDIA's runtime compiler, NVRTC
ROW = 1024  # elements of a row of ``reduced``
CHUNK = 1 << 15  # elements, few enough to stay in the cache for four passes


def fused(inputs: str, outputs: str, operation: str, preamble: str = "") -> Callable:
    """Decorate elementwise lines of NumPy with the same lines in C, which run in their place on a GPU.

    The function takes the inputs and returns the outputs as new arrays; the lines in NumPy may overwrite the first
    input, to save a pass over memory, so nobody uses it afterwards. Or it takes the outputs too, after the inputs, and
    overwrites them, having read them if it likes.

    Args:
        inputs, outputs: the parameters in C, ``"T x, float64 scale"``. A type is NumPy's name of it, or a capital
            letter for one that the arrays decide. Inputs broadcast; a Python number is converted to its type.
        operation: what C does with one element of each.
        preamble: C functions that it calls.
    """

    def decorate(function: Callable) -> Callable:
        in_c = inputs, outputs, operation, function.__name__, preamble

        @wraps(function)
        def call(*arguments):
            return function(*arguments) if xp.name == "numpy" else _kernel(xp.module, *in_c)(*arguments)

        call.in_c = in_c  # for whoever wants to compile it
        return call

    return decorate


# CuPy compiles a kernel when it first meets a dtype, and remembers that in the kernel. The module is an argument, so
# that no kernel of a stand-in is taken for CuPy's.
@cache
def _kernel(cupy, inputs: str, outputs: str, operation: str, name: str, preamble: str):
    return cupy.ElementwiseKernel(inputs, outputs, operation, name, preamble=preamble, options=OPTIONS)


def rounded(total, dtype):
    """Round a float64 sum to ``dtype``, C-contiguous; an array of that precision or less is only converted.

    A sum of a few float32 numbers often lies exactly halfway between two of them. Then a term of 2^-58, which one order
    of adding keeps and another one loses, would decide to which of the two it rounds. So a float32 is not made from all
    53 bits of a sum but from its 43 highest, rounded (Veltkamp's splitting, in Dekker, 1971), which such a term does
    not reach.
    """
    if xp.dtype(dtype).itemsize >= total.dtype.itemsize:
        return total.astype(dtype, copy=False)
    result = xp.empty(total.shape, dtype)
    _round_high_bits(total, result)
    return result


@fused("float64 total", "T result", "double high = total * 1025; result = high - (high - total);")
def _round_high_bits(total, result) -> None:
    flat, into = total.reshape(-1), result.reshape(-1)
    for block in cache_blocks(total.size, CHUNK):
        part = flat[block]
        high = part * (2.0**10 + 1)
        high -= high - part  # the 43 highest bits of each
        into[block] = high


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
