"""Kernels: what NumPy does in several lines, in any order, or by a BLAS, and what a GPU does in its place.

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

**Products.** NumPy multiplies the matrices of a batch one by one. cuBLAS chooses the kernel of a product, and with it
the order of each sum, by what it is told about the product, the size of the batch included: with one call for all heads
the bits would depend on how many heads this process has. So each head is a call of its own, and everything that cuBLAS
is told about it is the same in every layout:

    shapes             the batch of one call are the samples of a micro-batch, which no layout cuts
    memory             factors and result have no gaps; whether a factor is stored by rows or by columns depends on the
                       operation that made it
    addresses          multiples of ALIGNMENT bytes; heads that start elsewhere are copied
    algorithm, modes   cuBLAS's defaults, with workspaces of a fixed size (``backend.REPRODUCIBLE``)

**16 bits.** The product of two bfloat16 or float16 numbers is exact in float32, unless it over- or underflows: it has
8 + 8, or 11 + 11, significant bits of 24. So a GPU multiplies the 16-bit codes in its tensor cores and adds up in
float32, and the result is that of a float32 product of the same numbers, added in another order. It is kept in float32.
Then ``CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`` has nothing to forbid: it is for results that have fewer bits
than their sums (cuBLAS documentation, "cublasMath_t").

cuBLAS stores matrices by columns, NumPy by rows. Read by columns, the memory of A is that of its transpose. So instead
of C = A B, cuBLAS computes C' = B' A' (' for transposed), and nothing is moved.
"""

from collections.abc import Callable
from functools import cache, wraps
from math import prod
from types import ModuleType

import numpy as np

from minidist.backend import cache_blocks, xp

OPTIONS = ("--fmad=false",)  # of NVIDIA's runtime compiler, NVRTC
ROW = 1024  # elements of a row of ``reduced``
CHUNK = 1 << 15  # elements, few enough to stay in the cache for four passes
ALIGNMENT = 256  # bytes: what cuBLAS's heuristics assume by default (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
TYPES = {"bfloat16": "CUDA_R_16BF", "float16": "CUDA_R_16F", "float32": "CUDA_R_32F", "float64": "CUDA_R_64F"}
ONES, ZEROS = ({kind: make(1, kind) for kind in ("float32", "float64")} for make in (np.ones, np.zeros))  # on the host


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


def row_sums(values):
    """The sums over the last axis: (..., n) -> (...)."""
    return values.sum(axis=-1)


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


def multiplies_codes() -> bool:
    """Whether products of 16-bit numbers take their codes, and not the float32 numbers that these stand for."""
    return xp.name != "numpy"


def matmul_each(a, b, out=None):
    """``a @ b``, each head by itself.

    Args:
        a: (H, ..., n, k), or a vector (k,) that is the same for all heads.
        b: (H, ..., k, m), of the same dtype, float32 or float64.
        out: array of the shape of the result, overwritten; None for a new array.

    Returns:
        (H, ..., n, m), or (H, ..., m) for a vector.
    """
    return xp.matmul(a, b, out=out) if xp.name == "numpy" else _by_cublas(a, b, out, a.dtype.name)


def matmul_codes(a, b, kind: str, out=None):
    """Multiply the codes of 16-bit numbers in a GPU's tensor cores: uint16 in, float32 out.

    Args:
        kind: what the codes stand for, "bfloat16" or "float16".
    """
    return _by_cublas(a, b, out, kind)


def _by_cublas(a, b, out, kind: str):
    if a.ndim == 1:
        rows = xp.broadcast_to(a, (*b.shape[:-2], 1, len(a)))
        return _by_cublas(rows, b, None if out is None else out[..., None, :], kind)[..., 0, :]
    shape = (*a.shape[:-1], b.shape[-1])  # (H, ..., n, m)
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2] or (out is not None and out.shape != shape):
        into = "" if out is None else f" into {out.shape}"
        raise ValueError(f"products of {a.shape} and {b.shape}{into}: (H, ..., n, k) and (H, ..., k, m) are needed")
    if out is None:
        out = xp.empty(shape, "float64" if kind == "float64" else "float32")
    if a.shape[-1] == 0:
        out.fill(0)
    elif out.size:
        _multiply(Factor(a), Factor(b), out, kind)
    return out


def _multiply(a: "Factor", b: "Factor", out, kind: str) -> None:
    """A call of cuBLAS for each head. All arguments but the addresses are the same for all heads."""
    cublas, runtime, dtype = xp.cuda.cublas, xp.cuda.runtime, out.dtype.name
    heads, *batch, n, m = out.shape
    k, count = a.columns, prod(batch)
    c = out if fits(out) else with_gaps(out.shape, out.dtype)
    # C' = B' A': cuBLAS gets b before a, and (m, n) for (n, m)
    order_b, order_a = (cublas.CUBLAS_OP_T if factor.by_columns else cublas.CUBLAS_OP_N for factor in (b, a))
    first = xp.cuda.get_cublas_handle(), order_b, order_a, m, n, k, ONES[dtype].ctypes.data
    factor_type, result_type = getattr(runtime, TYPES[kind]), getattr(runtime, TYPES[dtype])
    of_b, of_a, of_c = (factor_type, b.leading), (factor_type, a.leading), (result_type, m)
    zero = ZEROS[dtype].ctypes.data
    last = cublas.CUBLAS_COMPUTE_64F if dtype == "float64" else cublas.CUBLAS_COMPUTE_32F, cublas.CUBLAS_GEMM_DEFAULT
    places = [(one.data.ptr, one.strides[0]) for one in (a.stored, b.stored, c)]
    for h in range(heads):
        at_a, at_b, at_c = (begin + h * step for begin, step in places)
        if count == 1:
            cublas.gemmEx(*first, at_b, *of_b, at_a, *of_a, zero, at_c, *of_c, *last)
        else:
            cublas.gemmStridedBatchedEx(
                *first, at_b, *of_b, k * m, at_a, *of_a, n * k, zero, at_c, *of_c, n * m, count, *last
            )
    if c is not out:
        out[...] = c


def repeats(values) -> bool:
    """Whether an array shows the same values along all of its first axis, as what goes into the heads does."""
    return values.ndim > 0 and values.shape[0] > 1 and values.size > 0 and values.strides[0] == 0


class Factor:
    """The matrices (H, ..., n, m) of one side of the products, as cuBLAS takes them.

    Attributes:
        columns: m.
        by_columns: whether the matrices are stored by columns.
        stored: (H, ..., n, m), or (H, ..., m, n) if they are.
        leading: how many numbers lie between the beginnings of two rows, or columns.
    """

    def __init__(self, matrices) -> None:
        *_, rows, self.columns = matrices.shape
        of_row, of_column = matrices.strides[-2:]
        self.by_columns = rows > 1 and self.columns > 1 and of_row < of_column  # a vector has only one order
        self.stored = stored = matrices.swapaxes(-1, -2) if self.by_columns else matrices
        if not fits(stored):
            self.stored = with_gaps(stored.shape, stored.dtype)
            self.stored[...] = stored
        self.leading = stored.shape[-1]


def fits(array) -> bool:
    """Whether each head of an array has no gaps inside and begins at an aligned address.

    The addresses of CuPy's memory pool are multiples of 512.
    """
    aligned = (array.data.ptr - array.data.mem.ptr) % ALIGNMENT == 0
    return array[:1].flags.c_contiguous and aligned and (len(array) == 1 or array.strides[0] % ALIGNMENT == 0)


def with_gaps(shape: tuple[int, ...], dtype):
    """A new array that fits: between the heads there are gaps, where they do not end at an aligned address."""
    heads, size, unit = shape[0], prod(shape[1:]), ALIGNMENT // xp.dtype(dtype).itemsize
    return xp.empty((heads, -(-size // unit) * unit), dtype)[:, :size].reshape(shape)
