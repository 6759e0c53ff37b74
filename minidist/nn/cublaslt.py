"""Products on a GPU by cuBLASLt. The algorithm depends on the shape of one head, not on the number of heads.

cuBLAS chooses the kernel of a product, and with it the order of each sum, by all arguments of the call, including the
number of matrices: a process with half of the heads might get other bits. cuBLASLt is the same library, but separates
the choice from the product (https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api). So it is asked once for each
shape, always for ``ASKED`` heads, and the algorithm that it returns, with its tile and its pipeline, computes any
number of heads in one call. Algorithms that split a sum over several blocks of threads are excluded: what a block adds
depends on its matrices alone.

The description of a head is the same in every layout:

    shapes             the samples of a head are those of a micro-batch, which no layout cuts
    memory             matrices have no gaps; whether a factor is stored by rows or by columns depends on the operation
                       that made it
    addresses          multiples of a number that divides a matrix's bytes; an array that starts elsewhere is copied

cuBLAS stores matrices by columns, NumPy by rows. Read by columns, the memory of A is that of its transpose. So instead
of C = A B, cuBLAS computes C' = B' A' (' for transposed), and nothing is moved.

CuPy does not wrap cuBLASLt, but it has loaded the library. Names, numbers and types are those of cublasLt.h.
"""

import ctypes
from ctypes import byref, c_float, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache
from math import gcd, prod
from types import ModuleType
from typing import NamedTuple

import numpy as np

from minidist.backend import xp

ASKED = 16  # heads
CANDIDATES = 8  # algorithms to choose from
WORKSPACE = 1 << 25  # bytes: what NVIDIA recommends for Hopper
ALIGNMENT = 256  # bytes: addresses are multiples of it where a matrix's size allows; cuBLASLt's default assumption
CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F = 68, 70
BYTES = {"float32": 4, "float64": 8, "float16": 2, "bfloat16": 2}
TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}  # cudaDataType_t
TRANSA, TRANSB = 3, 4  # cublasLtMatmulDescAttributes_t
BATCH_COUNT, STRIDED_BATCH_OFFSET = 5, 6  # cublasLtMatrixLayoutAttribute_t
MAX_WORKSPACE_BYTES, REDUCTION_SCHEME_MASK = 1, 3  # cublasLtMatmulPreferenceAttributes_t
MIN_ALIGNMENT = 5, 6, 7, 8  # of A, B, C and D
ONES, ZEROS = ({kind: make(1, kind) for kind in ("float32", "float64")} for make in (np.ones, np.zeros))  # on the host


class Shape(NamedTuple):
    """Shape of one head's product, ``(samples, n, k) @ (samples, k, m)``. The algorithm depends on it alone.

    Attributes:
        kind: type of the factors, a key of TYPES. The result is float64 for float64 factors, otherwise float32.
        turned_a, turned_b: whether a factor is stored by columns.
    """

    kind: str
    turned_a: bool
    turned_b: bool
    samples: int
    n: int
    k: int
    m: int

    @property
    def result(self) -> str:
        return "float64" if self.kind == "float64" else "float32"


class Found(ctypes.Structure):
    """An algorithm that cuBLASLt proposes: ``cublasLtMatmulHeuristicResult_t``."""

    _fields_ = (
        ("algorithm", c_uint64 * 8),
        ("workspace", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class CublasLt:
    """The library on one GPU, with the algorithms and layouts that it has chosen so far."""

    def __init__(self, cupy: ModuleType) -> None:
        major = cupy.cuda.cublas.getVersion(0) // 10_000
        self.library, self.handle = ctypes.cdll.LoadLibrary(f"libcublasLt.so.{major}"), c_void_p()
        self.library.cublasLtMatmul.argtypes = [c_void_p] * 14 + [c_size_t, c_void_p]
        self("Create", byref(self.handle))
        self.workspace = cupy.empty(WORKSPACE, "u1")
        self.algorithms: dict[Shape, tuple[c_void_p, Found]] = {}
        self.layouts: dict[tuple, tuple[c_void_p, ...]] = {}

    def __call__(self, name: str, *arguments) -> None:
        status = getattr(self.library, f"cublasLt{name}")(*arguments)
        if status:
            raise RuntimeError(f"cublasLt{name} failed with status {status} (cublasStatus_t)")

    def multiply(self, shape: Shape, count: int, a, b, c, stream: int) -> None:
        """Multiply ``count`` matrices. a, b, c: pairs of an address and the stride between matrices, in elements."""
        description, found = self.algorithms.get(shape) or self.choose(shape)
        key = shape, count, a[1], b[1], c[1]
        of_b, of_a, of_c = self.layouts.get(key) or self.lay_out(*key)
        one, zero = ONES[shape.result].ctypes.data, ZEROS[shape.result].ctypes.data
        self(
            "Matmul", self.handle, description, one, b[0], of_b, a[0], of_a, zero, c[0], of_c, c[0], of_c,
            byref(found), self.workspace.data.ptr, WORKSPACE, stream,
        )  # fmt: skip

    def choose(self, shape: Shape) -> tuple[c_void_p, Found]:
        """Return the algorithm for a shape: the fastest, by cuBLASLt's estimate, that computes one head and many."""
        compute = CUBLAS_COMPUTE_64F if shape.result == "float64" else CUBLAS_COMPUTE_32F
        description = self.make("MatmulDesc", c_int(compute), c_int(TYPES[shape.result]))
        for attribute, turned in ((TRANSA, shape.turned_b), (TRANSB, shape.turned_a)):
            self.tell("MatmulDesc", description, attribute, c_int32(turned))
        preference = self.make("MatmulPreference")
        self.tell("MatmulPreference", preference, MAX_WORKSPACE_BYTES, c_uint64(WORKSPACE))
        self.tell("MatmulPreference", preference, REDUCTION_SCHEME_MASK, c_uint32(0))
        n, k, m = shape.n, shape.k, shape.m
        of_a, of_b, of_c = n * k, k * m, n * m  # elements
        sizes = of_b * BYTES[shape.kind], of_a * BYTES[shape.kind], *[of_c * BYTES[shape.result]] * 2
        for attribute, size in zip(MIN_ALIGNMENT, sizes, strict=True):
            self.tell("MatmulPreference", preference, attribute, c_uint32(gcd(ALIGNMENT, size)))
        asked = [self.lay_out(shape, heads * shape.samples, of_a, of_b, of_c) for heads in (ASKED, 1)]
        candidates, count = (Found * CANDIDATES)(), c_int()
        b, a, c = asked[0]
        told = self.handle, description, b, a, c, c, preference
        self("MatmulAlgoGetHeuristic", *told, CANDIDATES, candidates, byref(count))
        for found in candidates[: count.value]:
            if found.state == 0 and all(self.computes(description, layouts, found) for layouts in asked):
                self.algorithms[shape] = description, found
                return self.algorithms[shape]
        raise RuntimeError(f"cuBLASLt has no algorithm for {shape}: leave --backend at numpy, or choose other sizes")

    def computes(self, description, layouts, found: Found) -> bool:
        b, a, c = layouts
        algorithm, result = byref(found), byref(Found())
        status = self.library.cublasLtMatmulAlgoCheck(self.handle, description, b, a, c, c, algorithm, result)
        return status == 0

    def lay_out(self, shape: Shape, count: int, of_a: int, of_b: int, of_c: int) -> tuple[c_void_p, ...]:
        """Return the layouts of b, a and the result. cuBLAS reads by columns: a row here is a column there."""
        n, k, m = shape.n, shape.k, shape.m
        b, a = ((k, m) if shape.turned_b else (m, k)), ((n, k) if shape.turned_a else (k, n))
        factor, result, found = shape.kind, shape.result, []
        for kind, (rows, columns), stride in ((factor, b, of_b), (factor, a, of_a), (result, (m, n), of_c)):
            layout = self.make("MatrixLayout", c_int(TYPES[kind]), c_uint64(rows), c_uint64(columns), c_int64(rows))
            self.tell("MatrixLayout", layout, BATCH_COUNT, c_int32(count))
            self.tell("MatrixLayout", layout, STRIDED_BATCH_OFFSET, c_int64(stride))
            found.append(layout)
        self.layouts[shape, count, of_a, of_b, of_c] = found = tuple(found)
        return found

    def make(self, kind: str, *arguments) -> c_void_p:
        made = c_void_p()
        self(f"{kind}Create", byref(made), *arguments)
        return made

    def tell(self, kind: str, whom: c_void_p, attribute: int, value) -> None:
        self(f"{kind}SetAttribute", whom, c_int(attribute), byref(value), c_size_t(ctypes.sizeof(value)))


@cache
def on_gpu(cupy: ModuleType, device: int) -> CublasLt:
    """Return the library on GPU number ``device``, which the calling thread must be using."""
    return CublasLt(cupy)


def product(a, b, out, kind: str):
    """Return ``a @ b``, all heads in one call. a, b, out: see ``kernels.matmul_each``; kind: a key of TYPES."""
    if a.ndim == 1:
        rows = xp.broadcast_to(a, (*b.shape[:-2], 1, len(a)))
        return product(rows, b, None if out is None else out[..., None, :], kind)[..., 0, :]
    shape = (*a.shape[:-1], b.shape[-1])  # (H, ..., n, m)
    if a.shape[:-2] != b.shape[:-2] or a.shape[-1] != b.shape[-2] or (out is not None and out.shape != shape):
        into = "" if out is None else f" into {out.shape}"
        raise ValueError(f"products of {a.shape} and {b.shape}{into}: (H, ..., n, k) and (H, ..., k, m) are needed")
    if out is None:
        out = xp.empty(shape, "float64" if kind == "float64" else "float32")
    if a.shape[-1] == 0:
        out.fill(0)
    elif out.size:
        _multiply(a, b, out, kind)
    return out


def _multiply(a, b, out, kind: str) -> None:
    *batch, n, m = out.shape
    (stored_a, turned_a), (stored_b, turned_b) = _stored(a), _stored(b)
    shape, c = Shape(kind, turned_a, turned_b, prod(batch[1:]), n, a.shape[-1], m), evenly_spaced(out)
    library = on_gpu(xp.module, xp.cuda.Device().id)
    library.multiply(shape, prod(batch), *map(place, (stored_a, stored_b, c)), stream=xp.cuda.get_current_stream().ptr)
    if c is not out:
        out[...] = c


def _stored(matrices) -> tuple:
    """Return matrices (H, ..., n, m) as cuBLAS takes them, and whether by columns, that is as (H, ..., m, n)."""
    *_, rows, columns = matrices.shape
    of_row, of_column = matrices.strides[-2:]
    turned = rows > 1 and columns > 1 and of_row < of_column  # a vector has only one order
    return evenly_spaced(matrices.swapaxes(-1, -2) if turned else matrices), turned


def place(array) -> tuple[int, int]:
    """Return the address of an array's first matrix, and the stride to the next one in elements."""
    size = array.shape[-2] * array.shape[-1]
    step = array.strides[0] // array.itemsize if size * len(array) == array.size > size else size
    return array.data.ptr, step


def evenly_spaced(array):
    """Return the array, or a copy whose matrices lie at a constant stride.

    No matrix has gaps inside, and each begins at a multiple of a number of bytes that depends on its shape. The
    addresses of CuPy's memory pool are multiples of 512.
    """
    matrix = array.shape[-2] * array.shape[-1] * array.itemsize
    unit = gcd(ALIGNMENT, matrix)
    if (array.data.ptr - array.data.mem.ptr) % unit == 0:
        if array.flags.c_contiguous:
            return array
        one_each = matrix * len(array) == array.nbytes  # one matrix per head, at any stride; all heads may share one
        if one_each and array[:1].flags.c_contiguous and array.strides[0] % unit == 0:
            return array
    return array.copy()
