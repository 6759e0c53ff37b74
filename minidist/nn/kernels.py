"""Kernels: operations that NumPy does in several lines, in any order or by a BLAS, and what a GPU runs instead.

**Fused lines.** Each line of NumPy is a pass over memory. On a GPU it is also a kernel launch, some microseconds of the
host's time however small the array, and arithmetic waits for memory: ten lines take ten times as long as one. So the
lines that a training step runs most often are written twice, side by side: in NumPy, and in C for a single element.
With CuPy the C runs, for all elements in one pass (``cupy.ElementwiseKernel``).

Both give the same bits, except for ``tanh``, of which every library has its own, and for subnormal numbers, which
CuPy's kernels flush to 0 (``-ftz=true``, cupy/cuda/compiler.py). They take the same steps, or others that are exact,
and ``--fmad=false`` keeps the compiler from fusing ``a * b + c`` into one operation that rounds once instead of twice.
Division and square root are rounded correctly on both sides: that is NVRTC's default (``--prec-div``, ``--prec-sqrt``).

**Sums.** The order in which CuPy's own kernel adds depends on the number of terms and, if the terms of neighbouring
results are adjacent in memory, on the number of results up to 32 (``_get_contiguous_size`` and ``_get_block_specs`` in
cupy/_core/_reduction.pyx). So a sum over the last axis depends on its length alone, and ``x.sum(axis=-1)`` is right.
For sums over another axis there is ``column_sums``.

Two other ways to add, which CuPy would choose, are avoided. CUB loads four numbers at once if the address of a row
allows it, and otherwise adds in another order (``AgentReduce`` in cub/agent/agent_reduce.cuh), so ``backend.find``
switches it off. ``einsum`` makes one batched matrix product of all rows, whose kernel depends on their number, so dot
products use ``dot_each``. And atomic additions have no order at all: ``add_at`` is for float64 sums that are
``rounded`` afterwards, so that the order does not show.

**Products** on a GPU are in nn/cublaslt.py.

**16 bits.** The product of two bfloat16 or float16 numbers is exact in float32, unless it over- or underflows: it has
8 + 8, or 11 + 11, significant bits of 24. So a GPU multiplies the 16-bit codes in its tensor cores and adds up in
float32, and the result is that of a float32 product of the same numbers, added in another order. It is kept in float32.
Then ``CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`` has no effect: it is for results that have fewer bits than
their sums (cuBLAS documentation, "cublasMath_t").
"""

import threading
from collections.abc import Callable
from contextlib import contextmanager
from functools import cache, wraps
from itertools import accumulate
from math import gcd
from types import ModuleType

import numpy as np

from minidist.backend import cache_blocks, xp
from minidist.nn import cublaslt

OPTIONS = ("--fmad=false",)  # for NVIDIA's runtime compiler, NVRTC
ROW = 1024  # elements in a row of ``reduced``
PIECE = 1 << 14  # elements of an array per piece of work, in a launch for many arrays
IN_C = {"f": "float", "d": "double", "float64": "double"}  # dtypes of arrays that share a launch
CHUNK = 1 << 15  # elements, few enough to stay in the cache for four passes


def fused(inputs: str, outputs: str, operation: str, preamble: str = "") -> Callable:
    """Decorate elementwise lines of NumPy with the same lines in C, which run in their place on a GPU.

    The function takes the inputs and returns the outputs as new arrays; its NumPy lines may overwrite the first input
    to save a pass over memory, so callers must not use it afterwards. Or it takes the outputs, too, after the inputs,
    and overwrites them; it may read them first.

    Args:
        inputs, outputs: the parameters in C, ``"T x, float64 scale"``. A type is a NumPy type name, or a capital
            letter for a type that the arrays determine. Inputs broadcast; a Python number is converted to its type.
        operation: C statements for one element of each.
        preamble: C functions that ``operation`` calls.
    """

    def decorate(function: Callable) -> Callable:
        in_c = inputs, outputs, operation, function.__name__, preamble

        @wraps(function)
        def call(*arguments):
            if xp.name == "numpy":
                return function(*arguments)
            if _waiting.calls is not None and len(arguments) == count and _alike(arguments):
                return _waiting.calls.setdefault((in_c, *map(_char, arguments)), []).append(arguments)
            return _kernel(xp.module, *in_c)(*arguments)

        count = len(_parameters(in_c))
        call.in_c = in_c  # pyright: ignore[reportAttributeAccessIssue]: for callers that compile it
        return call

    return decorate


# CuPy compiles a kernel when it first meets a dtype, and caches the result in the kernel. The module is an argument so
# that a stand-in's kernels are not confused with CuPy's.
@cache
def _kernel(cupy, inputs: str, outputs: str, operation: str, name: str, preamble: str):
    return cupy.ElementwiseKernel(inputs, outputs, operation, name, preamble=preamble, options=OPTIONS)


class _Waiting(threading.local):
    calls: dict[tuple, list[tuple]] | None = None  # within ``together``: the calls by function and dtypes


_waiting = _Waiting()


@contextmanager
def together():
    """Defer fused functions that write into given arrays to the end of the block: one launch each, for all arrays.

    On a GPU a small array takes less time than a launch, and a model has many small parameters; PyTorch's optimizers
    have ``foreach`` for this purpose. Within the block nothing may read the arrays that such a function writes.
    """
    if xp.name == "numpy":
        yield
        return
    _waiting.calls = {}
    try:
        yield
        for (in_c, *dtypes), calls in _waiting.calls.items():
            _launch(in_c, tuple(dtypes), calls)
    finally:
        _waiting.calls = None


def _parameters(in_c: tuple) -> list[tuple[str, ...]]:
    """Return the type and the name of each parameter."""
    return [tuple(one.split()) for one in f"{in_c[0]}, {in_c[1]}".split(",")]


def _char(argument) -> str:
    """Return the dtype of an array as a letter; "" for a number."""
    return argument.dtype.char if isinstance(argument, xp.ndarray) else ""


def _alike(arguments: tuple) -> bool:
    """Return whether all arrays are C-contiguous floats with the same number of elements."""
    arrays = [one for one in arguments if isinstance(one, xp.ndarray)]
    size = arrays[0].size
    return all(one.size == size and one.dtype.char in IN_C and one.flags.c_contiguous for one in arrays)


def _launch(in_c: tuple, dtypes: tuple[str, ...], calls: list[tuple]) -> None:
    """Launch one kernel for all calls. A table assigns each thread to a piece: PIECE elements of one call.

    The table holds for each piece the line of its call, then the lines: the first piece, the number of elements, and
    the arguments, an address or a float64 each.
    """
    columns = list(zip(*calls, strict=True))
    sizes = np.array([array.size for array in columns[next(i for i, char in enumerate(dtypes) if char)]])
    pieces = -(-sizes // PIECE)
    lines = np.empty((len(calls), 2 + len(dtypes)), np.uint64)
    lines[:, 0], lines[:, 1] = np.cumsum(pieces) - pieces, sizes
    for place, (char, column) in enumerate(zip(dtypes, columns, strict=True), 2):
        if char:
            lines[:, place] = [array.data.ptr for array in column]
        else:
            lines.view(np.float64)[:, place] = column
    first = pieces.sum() + np.repeat(np.arange(len(calls)) * lines.shape[1], pieces)
    table = xp.asarray(np.concatenate((first.astype(np.uint64), lines.reshape(-1))))
    _kernel_for_all(xp.module, in_c, dtypes)(table, table.view("f8"), size=int(pieces.sum()) * PIECE)


@cache
def _kernel_for_all(cupy: ModuleType, in_c: tuple, dtypes: tuple[str, ...]):
    inputs, outputs, operation, name, preamble = for_all(in_c, dtypes)
    return cupy.ElementwiseKernel(inputs, outputs, operation, name, preamble=preamble, options=OPTIONS)


def for_all(in_c: tuple, dtypes: tuple[str, ...]) -> tuple[str, ...]:
    """Return a fused function's C for the elements of many arrays: inputs, outputs, operation, name, preamble.

    Args:
        in_c: the C of a ``fused`` function for one array.
        dtypes: letters of its arguments' dtypes; "" for a number.
    """
    *_, operation, name, preamble = in_c
    parameters = list(zip(_parameters(in_c), dtypes, strict=True))
    in_these = {kind: IN_C[char] for (kind, _), char in parameters if char} | IN_C
    lines = []
    for place, ((kind, own_name), char) in enumerate(parameters, 2):
        if char:
            lines.append(f"{in_these[kind]} &{own_name} = (({in_these[kind]} *)table[line + {place}])[at];")
        else:
            lines.append(f"const {in_these[kind]} {own_name} = ({in_these[kind]})numbers[line + {place}];")
    body = f"""
    const ptrdiff_t line = table[i / {PIECE}], at = i - (ptrdiff_t)table[line] * {PIECE};
    if (at < (ptrdiff_t)table[line + 1]) {{
        {" ".join(lines)}
        {operation};
    }}
    """
    return "raw uint64 table, raw float64 numbers", "", body, f"{name}_for_all", preamble


def joined(arrays: list) -> list:
    """Return the arrays; on a GPU, where a pass costs less than a launch, join those of each dtype into one."""
    if xp.name == "numpy" or len(arrays) < 2:
        return arrays
    found = []
    with together():
        for dtype in dict.fromkeys(array.dtype for array in arrays):
            alike = [array for array in arrays if array.dtype == dtype]
            ends = list(accumulate(array.size for array in alike))
            found.append(whole := xp.empty(ends[-1], dtype))
            for array, end in zip(alike, ends, strict=True):
                _copied(array.reshape(-1), whole[end - array.size : end])
    return found


@fused("T source", "T target", "target = source")
def _copied(source, target) -> None:
    target[...] = source


def rounded(total, dtype, count: float | None = None):
    """Round a float64 sum, or its mean over ``count`` terms, to ``dtype``, C-contiguous.

    An array that is no more precise than ``dtype`` is only divided and converted.

    A sum of a few float32 numbers often lies exactly halfway between two of them. Then a term of 2^-58, which one order
    of adding keeps and another one loses, would decide to which of the two it rounds. So a float32 is not made from all
    53 bits of a sum but from its 43 highest, rounded (Veltkamp's splitting, in Dekker, 1971): such a term does not
    reach them.
    """
    if xp.dtype(dtype).itemsize >= total.dtype.itemsize:
        return (total if count is None else total / count).astype(dtype, copy=False)
    result = xp.empty(total.shape, dtype)
    _round_high_bits(total, count or 1, result)
    return result


@fused(
    "float64 total, float64 count",
    "T result",
    "double mean = total / count, high = mean * 1025; result = high - (high - mean);",
)
def _round_high_bits(total, count, result) -> None:
    flat, into = total.reshape(-1), result.reshape(-1)
    for block in cache_blocks(total.size, CHUNK):
        part = flat[block] if count == 1 else flat[block] / count
        high = part * (2.0**10 + 1)
        high -= high - part  # the 43 highest bits of each
        into[block] = high


def dot_each(a, b):
    """Return the dot products of the rows of two arrays: (..., n) and (..., n) of one dtype -> (...)."""
    if xp.name == "numpy":
        return xp.einsum("...n,...n->...", a, b)
    return _dot_kernel(xp.module)(xp.ascontiguousarray(a), xp.ascontiguousarray(b), axis=-1)


@cache
def _dot_kernel(cupy: ModuleType):
    """Return a kernel of dot products that adds in the order of CuPy's sums."""
    return cupy.ReductionKernel(
        "T x, T y", "T out", "x * y", "a + b", "out = a", "0", "dot_each", options=OPTIONS
    )  # fmt: skip


def row_sums(values):
    """Return the sums over the last axis: (..., n) -> (...)."""
    return values.sum(axis=-1)


def column_sums(values):
    """Return the sums over the last axis but one: (..., n, m) -> (..., m).

    A GPU adds term by term. So does NumPy, except for a single column, which it adds pairwise.
    """
    sums = xp.empty((*values.shape[:-2], values.shape[-1]), values.dtype)
    _column_sums(values, values.shape[-2], values.shape[-1], sums)
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


def sum_over_tokens(values):
    """Sum (..., C) over all axes except the last to (C,), in float64: a parameter's gradient, one term per token."""
    rows = values.reshape(-1, values.shape[-1])
    if xp.name != "numpy":  # by parts first: they keep more of a GPU busy than columns alone
        rows = rows.reshape(gcd(len(rows), 64), -1, rows.shape[1]).sum(axis=1, dtype=xp.float64)
    return rows.sum(axis=0, dtype=xp.float64)


def counts_of(values, count: int):
    """Count how often each integer below ``count`` occurs in ``values`` (n,): integers (count,).

    CuPy's ``bincount`` makes the host wait for the smallest and the largest value.
    """
    if xp.name == "numpy":
        return xp.bincount(values, minlength=count)
    return (values[:, None] == xp.arange(count)).sum(axis=0)


def reduced(reduce, array):
    """Return ``reduce(array)`` over all elements, for ``xp.max``, ``xp.min``, ``xp.all``, or ``xp.sum`` of integers.

    Their results do not depend on the order. On a GPU rows are reduced first, then their results: CuPy's kernel has one
    block of threads for each result, and would leave all but one of the multiprocessors idle.
    """
    if xp.name == "numpy" or array.size < 2 * ROW:
        return reduce(array)
    flat = array.reshape(-1)
    whole = array.size - array.size % ROW
    found, rest = reduce(flat[:whole].reshape(-1, ROW), axis=1), flat[whole:]
    return reduce(xp.concatenate((found, rest)) if rest.size else found)


def add_at(target, index, values) -> None:
    """Add ``values`` to ``target[index]`` along the first axis, where indices may repeat (``np.add.at``)."""
    xp.add.at(target, index, values)


def multiplies_codes() -> bool:
    """Return whether products of 16-bit numbers take their codes, not the float32 numbers that the codes stand for."""
    return xp.name != "numpy"


def matmul_each(a, b, out=None):
    """Return ``a @ b``, head by head.

    Args:
        a: (H, ..., n, k), or a vector (k,) that is the same for all heads.
        b: (H, ..., k, m), of the same dtype, float32 or float64.
        out: array of the shape of the result, overwritten; None for a new array.

    Returns:
        (H, ..., n, m), or (H, ..., m) for a vector.
    """
    return xp.matmul(a, b, out=out) if xp.name == "numpy" else cublaslt.product(a, b, out, a.dtype.name)


def matmul_codes(a, b, kind: str, out=None):
    """Multiply the codes of 16-bit numbers in a GPU's tensor cores: uint16 in, float32 out.

    Args:
        kind: format of the codes, "bfloat16" or "float16".
    """
    return cublaslt.product(a, b, out, kind)


def repeats(values) -> bool:
    """Return whether an array repeats the same values along its first axis, as the input of the heads does."""
    return values.ndim > 0 and values.shape[0] > 1 and values.size > 0 and values.strides[0] == 0
