"""``cupy.cuda.cublas``: products of matrices in the memory of device arrays, given by addresses.

The real one reads and writes whatever an address points to. Here an address must be in the memory of a live device
array with elements of the type that the call names, and the matrices must end before that memory does. The orders,
sizes and leading dimensions are checked as cuBLAS documents them, and some that it would take are refused: sizes of 0,
a result that overlaps a factor, factors of different types.
"""

import ctypes

import numpy as np

from cupy.arrays import address_of, owner_of
from cupy.traffic import product

CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
CUBLAS_GEMM_DEFAULT = -1
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F = 68, 70
CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14  # of cupy.cuda.runtime
HANDLE = 0xB1A5

NAMES = {CUDA_R_32F: "float32", CUDA_R_64F: "float64", CUDA_R_16F: "float16", CUDA_R_16BF: "bfloat16"}
STORED = dict(zip(NAMES, map(np.dtype, ("float32", "float64", "uint16", "uint16")), strict=True))
# Type of sums -> (C type of alpha and beta, type of the result, types of the factors): rows of cuBLAS's table
COMPUTE = {
    CUBLAS_COMPUTE_32F: (ctypes.c_float, CUDA_R_32F, (CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF)),
    CUBLAS_COMPUTE_64F: (ctypes.c_double, CUDA_R_64F, (CUDA_R_64F,)),
}


class CUBLASError(RuntimeError):
    pass


def getVersion(handle) -> int:
    return 0


def get_cublas_handle() -> int:
    return HANDLE


def gemmEx(
    handle, transa, transb, m, n, k, alpha, A, Atype, lda, B, Btype, ldb, beta, C, Ctype, ldc, computeType, algo
):  # fmt: skip
    factors = (A, Atype, lda, 0), (B, Btype, ldb, 0)
    _products(handle, (transa, transb), (m, n, k), alpha, factors, beta, (C, Ctype, ldc, 0), 1, computeType, algo)


def gemmStridedBatchedEx(
    handle, transa, transb, m, n, k, alpha, A, Atype, lda, strideA, B, Btype, ldb, strideB, beta, C, Ctype, ldc,
    strideC, batchCount, computeType, algo,
):  # fmt: skip
    factors, result = ((A, Atype, lda, strideA), (B, Btype, ldb, strideB)), (C, Ctype, ldc, strideC)
    _check(batchCount == 1 or strideC >= ldc * n, f"results overlap, {strideC} elements apart")
    _products(handle, (transa, transb), (m, n, k), alpha, factors, beta, result, batchCount, computeType, algo)


def _check(right: bool, otherwise: str) -> None:
    if not right:
        raise CUBLASError(otherwise)


def _products(handle, orders, sizes, alpha, factors, beta, result, count, compute, algo) -> None:
    (m, n, k), (_, kind, *_) = sizes, factors[0]
    if any(type(one) is not int for one in (*orders, *sizes, *result, *factors[0], *factors[1], count)):
        raise TypeError("an integer is required")
    _check(handle == HANDLE, "the handle is not that of this device")
    _check(min(m, n, k, count) > 0 and algo == CUBLAS_GEMM_DEFAULT, f"sizes {sizes}, {count} times, by {algo}")
    _check(set(orders) <= {CUBLAS_OP_N, CUBLAS_OP_T} and compute in COMPUTE, f"orders {orders}, summed in {compute}")
    number, of_result, of_factors = COMPUTE[compute]
    fits = factors[1][1] == kind and kind in of_factors and result[1] == of_result
    _check(fits, f"not supported: {kind}, {factors[1][1]} -> {result[1]}, summed in {compute}")
    one_and_zero = (number.from_address(alpha).value, number.from_address(beta).value) == (1, 0)
    _check(one_and_zero, "only alpha = 1 and beta = 0 are used here")
    # Stored by columns, (rows, columns) of each: read by rows, as NumPy does, they are (columns, rows).
    stored = (m, k) if orders[0] == CUBLAS_OP_N else (k, m), (k, n) if orders[1] == CUBLAS_OP_N else (n, k)
    a, b = (_matrices(*factor, *shape, count) for factor, shape in zip(factors, stored, strict=True))
    c = _matrices(*result, m, n, count)
    _check(not np.may_share_memory(c, a) and not np.may_share_memory(c, b), "the result overlaps a factor")
    a, b = (
        one.swapaxes(-1, -2) if order == CUBLAS_OP_T else one
        for one, order in zip((_numbers(a, kind), _numbers(b, kind)), orders, strict=True)
    )  # read by rows: (count, k, m) and (count, n, k)
    c[...] = b @ a
    product(NAMES[kind])


def _matrices(address: int, kind: int, leading: int, stride: int, rows: int, columns: int, count: int) -> np.ndarray:
    """What is at an address: matrices by columns, so (count, columns, rows), a view of a device array's memory."""
    _check(leading >= rows, f"leading dimension {leading} of matrices with {rows} rows")
    _check(stride > 0 or (stride == 0 and count == 1), f"stride {stride} between matrices")
    owner = owner_of(address, address + 1)
    _check(owner is not None, f"an illegal memory access: no device array lives at {address:#x}")
    memory = owner._host.ravel("K")  # a view: an array that owns its memory has no gaps
    _check(memory.dtype == STORED[kind], f"{NAMES[kind]} is read from, or written to, an array of {memory.dtype}")
    first, rest = divmod(address - address_of(owner), memory.itemsize)
    end = first + (count - 1) * stride + (columns - 1) * leading + rows
    _check(rest == 0 and end <= memory.size, f"an illegal memory access: elements {first} to {end} of {memory.size}")
    strides = tuple(memory.itemsize * step for step in (stride, leading, 1))
    return np.ndarray((count, columns, rows), memory.dtype, memory, first * memory.itemsize, strides)


def _numbers(stored: np.ndarray, kind: int) -> np.ndarray:
    """The float32 or float64 numbers that a product takes, in the same order of memory."""
    if kind == CUDA_R_16BF:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.view(np.float16).astype(np.float32) if kind == CUDA_R_16F else stored
