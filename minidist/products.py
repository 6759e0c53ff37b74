"""Matrix products, one for each head: NumPy's, or cuBLAS's on a GPU.

**Bits.** NumPy multiplies the matrices of a batch one by one. cuBLAS chooses the kernel of a product, and with it the
order of each sum, by what it is told about the product, the size of the batch included: with one call for all heads the
bits would depend on how many heads this process has. So each head is a call of its own, and everything that cuBLAS is
told about it is the same in every layout:

    shapes             the batch of one call are the samples of a micro-batch, which no layout cuts
    memory             factors and result have no gaps; whether a factor is stored by rows or by columns depends on the
                       operation that made it
    addresses          multiples of ALIGNMENT bytes; a head that starts elsewhere is copied
    algorithm, modes   cuBLAS's defaults, with workspaces of a fixed size (``backend.REPRODUCIBLE``)

**16 bits.** The product of two bfloat16 or float16 numbers is exact in float32: 8 and 8, or 11 and 11, bits of mantissa
make 16, or 22, of 24. So a GPU multiplies the 16-bit codes in its tensor cores and adds up in float32, and the result
is that of a float32 product of the same numbers, added in another order. It is kept in float32. Then
``CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION`` has nothing to forbid: it is for results that have fewer bits than
their sums (cuBLAS documentation, "cublasMath_t").

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
        out: (H, ..., n, m), overwritten; None for a new array.

    Returns:
        (H, ..., n, m), or (H, ..., m) for a vector.
    """
    return xp.matmul(a, b, out=out) if xp.name == "numpy" else _by_cublas(a, b, out, a.dtype.name)


def matmul_codes(a, b, kind: str, out=None):
    """The same on a GPU, in its tensor cores, for the codes of 16-bit numbers: uint16 in, float32 out.

    Args:
        kind: what the codes stand for, "bfloat16" or "float16".
    """
    return _by_cublas(a, b, out, kind)


def _by_cublas(a, b, out, kind: str):
    if a.ndim == 1:
        return _by_cublas(xp.broadcast_to(a, (len(b), 1, len(a))), b, None, kind)[:, 0]
    shape = (*a.shape[:-1], b.shape[-1])  # (H, ..., n, m)
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2] or (out is not None and out.shape != shape):
        into = "" if out is None else f" into {out.shape}"
        raise ValueError(f"products of {a.shape} and {b.shape}{into}: (H, ..., n, k) and (H, ..., k, m) are needed")
    result = out
    if out is None or not out[:1].flags.c_contiguous:  # each head's result must have no gaps
        result = xp.empty(shape, "float64" if kind == "float64" else "float32")
    if a.shape[-1] == 0:
        result.fill(0)
    elif result.size:
        a, b = Factor(a), Factor(b)
        for h in range(len(result)):
            _product_of_head(h, a, b, result, kind)
    if out is not None and result is not out:
        out[...] = result
    return result if out is None else out


class Factor:
    """The matrices (H, ..., n, m) of one side of the products, as cuBLAS takes them: by rows or by columns, no gaps.

    Attributes:
        by_columns: whether the matrices are stored by columns.
        stored: (H, ..., n, m), or (H, ..., m, n) if they are.
    """

    def __init__(self, matrices) -> None:
        *_, rows, columns = matrices.shape
        of_row, of_column = matrices.strides[-2:]
        self.by_columns = rows > 1 and columns > 1 and of_row < of_column  # a vector has only one order
        self.stored = matrices.swapaxes(-1, -2) if self.by_columns else matrices
        if not self.stored[:1].flags.c_contiguous:
            self.stored = xp.ascontiguousarray(self.stored)

    def of_head(self, h: int):
        """(..., n, m) or (..., m, n), at an aligned address."""
        return self.stored[h] if aligned(self.stored[h]) else self.stored[h].copy()


def aligned(array) -> bool:
    """Whether the array's address is a multiple of ALIGNMENT. Those of CuPy's memory pool are multiples of 512."""
    return (array.data.ptr - array.data.mem.ptr) % ALIGNMENT == 0


def _product_of_head(h: int, a: Factor, b: Factor, result, kind: str) -> None:
    """result[h] = a[h] @ b[h]."""
    left, right, target = a.of_head(h), b.of_head(h), result[h]
    *batch, n, m = target.shape
    k = left.shape[-2 if a.by_columns else -1]
    into = target if aligned(target) else xp.empty(target.shape, target.dtype)

    cublas, runtime, dtype = xp.cuda.cublas, xp.cuda.runtime, result.dtype.name
    factors, sums = getattr(runtime, TYPES[kind]), getattr(runtime, TYPES[dtype])
    compute = cublas.CUBLAS_COMPUTE_64F if dtype == "float64" else cublas.CUBLAS_COMPUTE_32F
    order_b, order_a = (cublas.CUBLAS_OP_T if one.by_columns else cublas.CUBLAS_OP_N for one in (b, a))
    sizes = xp.cuda.get_cublas_handle(), order_b, order_a, m, n, k, ONES[dtype].ctypes.data
    b_there = right.data.ptr, factors, right.shape[-1]
    a_there = left.data.ptr, factors, left.shape[-1]
    zero, c_there, how = ZEROS[dtype].ctypes.data, (into.data.ptr, sums, m), (compute, cublas.CUBLAS_GEMM_DEFAULT)
    if (count := prod(batch)) == 1:
        cublas.gemmEx(*sizes, *b_there, *a_there, zero, *c_there, *how)
    else:
        cublas.gemmStridedBatchedEx(
            *sizes, *b_there, k * m, *a_there, n * k, zero, *c_there, n * m, count, *how
        )  # fmt: skip
    if into is not target:
        target[...] = into
