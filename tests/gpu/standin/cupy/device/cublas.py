"""``cupy.cuda.cublas``: products of matrices in the memory of device arrays, given by addresses.

The real one reads and writes whatever an address points to. Here an address must be in the memory of a live device
array with elements of the type that the call names, and the matrices must end before that memory does. The orders,
sizes and leading dimensions are checked as cuBLAS documents them, and some that it would take are refused: sizes of 0,
a result that overlaps a factor, factors of different types.
"""

import ctypes
from itertools import chain

import numpy as np
from numpy.lib.stride_tricks import as_strided

from cupy.arrays import asked, owners
from cupy.traffic import product

CUBLAS_OP_N, CUBLAS_OP_T, CUBLAS_OP_C = 0, 1, 2
CUBLAS_GEMM_DEFAULT = -1
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F = 68, 70
CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14  # of cupy.cuda.runtime
HANDLE = 0xB1A5

NAMES = {CUDA_R_32F: "float32", CUDA_R_64F: "float64", CUDA_R_16F: "float16", CUDA_R_16BF: "bfloat16"}
STORED = {CUDA_R_32F: "float32", CUDA_R_64F: "float64", CUDA_R_16F: "uint16", CUDA_R_16BF: "uint16"}
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
    if batchCount > 1 and strideC < ldc * n:
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: results that overlap, {strideC} elements apart")
    _products(handle, (transa, transb), (m, n, k), alpha, factors, beta, result, batchCount, computeType, algo)


def _products(handle, orders, sizes, alpha, factors, beta, result, count, compute, algo) -> None:
    (m, n, k), (_, kind, *_) = sizes, factors[0]
    if handle != HANDLE:
        raise CUBLASError("CUBLAS_STATUS_NOT_INITIALIZED: the handle is not that of this device")
    if any(type(one) is not int for one in (*orders, *sizes, *result, *factors[0], *factors[1], count)):
        raise TypeError("an integer is required")
    if min(m, n, k, count) < 1 or set(orders) - {CUBLAS_OP_N, CUBLAS_OP_T} or algo != CUBLAS_GEMM_DEFAULT:
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: sizes {sizes}, orders {orders}, algorithm {algo}")
    if compute not in COMPUTE:
        raise CUBLASError(f"CUBLAS_STATUS_NOT_SUPPORTED: compute type {compute}")
    number, of_result, of_factors = COMPUTE[compute]
    if factors[1][1] != kind or kind not in of_factors or result[1] != of_result:
        raise CUBLASError(f"CUBLAS_STATUS_NOT_SUPPORTED: {kind}, {factors[1][1]} -> {result[1]}, summed in {compute}")
    if (number.from_address(alpha).value, number.from_address(beta).value) != (1, 0):
        raise CUBLASError("only alpha = 1 and beta = 0 are used here")
    # Stored by columns, (rows, columns) of each: read by rows, as NumPy does, they are (columns, rows).
    stored = (m, k) if orders[0] == CUBLAS_OP_N else (k, m), (k, n) if orders[1] == CUBLAS_OP_N else (n, k)
    a, b = (_matrices(*factor, *shape, count) for factor, shape in zip(factors, stored, strict=True))
    c = _matrices(*result, m, n, count)
    if np.may_share_memory(c, a) or np.may_share_memory(c, b):
        raise CUBLASError("CUBLAS_STATUS_INVALID_VALUE: the result overlaps a factor")
    a, b = (
        _numbers(one, kind).swapaxes(-1, -2) if order == CUBLAS_OP_T else _numbers(one, kind)
        for one, order in zip((a, b), orders, strict=True)
    )  # read by rows: (count, k, m) and (count, n, k)
    c[...] = b @ a
    product(NAMES[kind])


def _matrices(address: int, kind: int, leading: int, stride: int, rows: int, columns: int, count: int) -> np.ndarray:
    """What is at an address: matrices by columns, so (count, columns, rows), a view of a device array's memory."""
    if leading < rows:
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: leading dimension {leading} of matrices with {rows} rows")
    if stride < 0 or (count > 1 and stride == 0):
        raise CUBLASError(f"CUBLAS_STATUS_INVALID_VALUE: stride {stride} between matrices")
    memory, begin = _memory(address)
    if memory.dtype.name != STORED[kind]:
        raise CUBLASError(f"{NAMES[kind]} is read from, or written to, an array of {memory.dtype}")
    first, rest = divmod(address - begin, memory.itemsize)
    end = first + (count - 1) * stride + (columns - 1) * leading + rows
    if rest or end > memory.size:
        raise CUBLASError(f"an illegal memory access: elements {first} to {end} of {memory.size}")
    strides = tuple(memory.itemsize * step for step in (stride, leading, 1))
    return as_strided(memory[first:], (count, columns, rows), strides)


def _memory(address: int) -> tuple[np.ndarray, int]:
    """The memory of the live device array that an address is in, as one axis, and where it begins."""
    for array in chain((reference() for reference in reversed(asked)), owners.values()):
        if array is not None:
            begin = array._host.__array_interface__["data"][0]
            if begin <= address < begin + array.nbytes:
                return as_strided(array._host, (array.size,), (array.itemsize,)), begin
    raise CUBLASError(f"an illegal memory access: no device array lives at {address:#x}")


def _numbers(stored: np.ndarray, kind: int) -> np.ndarray:
    """The float32 or float64 numbers that a product takes, in the same order of memory."""
    if kind == CUDA_R_16BF:
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored.view(np.float16).astype(np.float32) if kind == CUDA_R_16F else stored
