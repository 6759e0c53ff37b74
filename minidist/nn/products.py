"""Matrix products, one for each head: NumPy's, or cuBLAS's on a GPU.

**Bits.** NumPy multiplies the matrices of a batch one by one. cuBLAS chooses the kernel of a product, and with it the
order of each sum, by what it is told about the product, the size of the batch included: with one call for all heads the
bits would depend on how many heads this process has. So each head is a call of its own, and everything that cuBLAS is
told about it is the same in every layout:

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

from math import prod

import numpy as np

from minidist.backend import xp

ALIGNMENT = 256  # bytes: what cuBLAS's heuristics assume by default (CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES)
TYPES = {"bfloat16": "CUDA_R_16BF", "float16": "CUDA_R_16F", "float32": "CUDA_R_32F", "float64": "CUDA_R_64F"}
ONES, ZEROS = ({kind: make(1, kind) for kind in ("float32", "float64")} for make in (np.ones, np.zeros))  # on the host


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
