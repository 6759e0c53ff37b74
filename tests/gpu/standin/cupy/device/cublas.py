"""``cupy.cuda.cublas``, and cuBLASLt: products of matrices in the memory of device arrays, given by addresses.

The real one reads and writes whatever an address points to. Here an address must be in the memory of a live device
array with elements of the type that a layout names, and the matrices must end before that memory does. Attributes have
the numbers and sizes of cublasLt.h. An algorithm is for the shapes and the alignment that it was asked for. Some that
cuBLASLt would take is refused: sizes of 0, a result that overlaps a factor, sums that are split.
"""

import ctypes
from ctypes import c_int32, c_int64, c_uint32, c_uint64
from functools import partial
from itertools import count as numbers
from types import SimpleNamespace

import numpy as np

from cupy.arrays import address_of, owner_of
from cupy.traffic import product

CUDA_R_32F, CUDA_R_64F, CUDA_R_16F, CUDA_R_16BF = 0, 1, 2, 14  # cudaDataType_t
HANDLE, NOT_SUPPORTED = 0xB1A5, 15
ATTRIBUTES = {  # cublasLt.h
    "MatmulDesc": {3: ("transa", c_int32), 4: ("transb", c_int32)},
    "MatrixLayout": {5: ("count", c_int32), 6: ("stride", c_int64)},
    "MatmulPreference": {1: ("workspace", c_uint64), 3: ("splits", c_uint32)}
    | {5 + place: (f"align_{name}", c_uint32) for place, name in enumerate("abcd")},
}
ARGUMENTS = {"MatmulDesc": ("compute", "scale"), "MatrixLayout": ("type", "rows", "columns", "leading")}

NAMES = {CUDA_R_32F: "float32", CUDA_R_64F: "float64", CUDA_R_16F: "float16", CUDA_R_16BF: "bfloat16"}
STORED = dict(zip(NAMES, map(np.dtype, ("float32", "float64", "uint16", "uint16")), strict=True))
# Type of sums -> (C type of alpha and beta, type of the result, types of the factors): rows of cuBLAS's table
COMPUTE = {
    68: (ctypes.c_float, CUDA_R_32F, (CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF)),
    70: (ctypes.c_double, CUDA_R_64F, (CUDA_R_64F,)),
}


class CUBLASError(RuntimeError):
    pass


def getVersion(handle) -> int:
    return 0


def _check(right: bool, otherwise: str) -> None:
    if not right:
        raise CUBLASError(otherwise)


_made: dict[int, dict] = {HANDLE: {"kind": "Create"}}  # descriptors, layouts and preferences, by the pointers to them
_algorithms: list[tuple] = []  # what each has been asked for
_pointers = numbers(HANDLE + 1)
products: list[SimpleNamespace] = []  # what the last ones were told, for tests


def create(kind: str, made, *arguments) -> int:
    made._obj.value = HANDLE if kind == "Create" else next(_pointers)
    own = dict(zip(ARGUMENTS.get(kind, ()), (one.value for one in arguments), strict=True))
    _made[made._obj.value] = {"kind": kind, "transa": 0, "transb": 0, "count": 1, "stride": 0, "splits": 7} | own
    return 0


def set_attribute(kind: str, whom, attribute, value, size) -> int:
    name, of_type = ATTRIBUTES[kind][attribute.value]
    _check(type(value._obj) is of_type and size.value == ctypes.sizeof(of_type), f"{name} is a {of_type.__name__}")
    _found(kind, whom)[name] = value._obj.value
    return 0


def _found(kind: str, pointer) -> dict:
    made = _made[getattr(pointer, "value", pointer)]
    _check(made["kind"] == kind, f"a {made['kind']} is no {kind}")
    return made


def _told(handle, description, layouts) -> tuple:
    """Return all that an algorithm depends on, except the number of matrices and their distance."""
    _check(getattr(handle, "value", handle) == HANDLE, "the handle is not that of this device")
    shapes = [tuple(_found("MatrixLayout", one)[name] for name in ARGUMENTS["MatrixLayout"]) for one in layouts]
    return tuple(_found("MatmulDesc", description).items()), *shapes


def ask(handle, description, a, b, c, d, preference, requested: int, results, count) -> int:
    """Two candidates: the first computes one head alone."""
    wanted = _found("MatmulPreference", preference)
    _check(wanted["splits"] == 0, "a sum may be split, by the number of heads")
    told = _told(handle, description, (a, b, c, d)), tuple(wanted.items())
    asked = tuple((_found("MatrixLayout", one)["count"], _found("MatrixLayout", one)["stride"]) for one in (a, b, c, d))
    for place, most in enumerate((1, None)):
        _algorithms.append((told, asked, most))
        results[place].algorithm[0], results[place].state = len(_algorithms) - 1, 0
    count._obj.value = 2
    return 0


def check(handle, description, a, b, c, d, algorithm, result) -> int:
    (told, _), _, most = _algorithms[algorithm._obj.algorithm[0]]
    _check(told == _told(handle, description, (a, b, c, d)), "the algorithm is for other shapes")
    return 0 if most is None or _found("MatrixLayout", c)["count"] <= most else NOT_SUPPORTED


def multiply(
    handle, description, alpha, a, of_a, b, of_b, beta, c, of_c, d, of_d, algorithm, workspace, size, stream
) -> int:  # fmt: skip
    _check(check(handle, description, of_a, of_b, of_c, of_d, algorithm, None) == 0, "the algorithm computes fewer")
    (_, wanted), *_ = _algorithms[algorithm._obj.algorithm[0]]
    wanted = dict(wanted)
    _check(owner_of(workspace, workspace + size) is not None and size >= wanted["workspace"], "no workspace")
    _check((c, of_c.value) == (d, of_d.value), "results are written where they are read")
    factors = [_found("MatrixLayout", one) for one in (of_a, of_b)]
    result, how = _found("MatrixLayout", of_c), _found("MatmulDesc", description)
    places = {"a": (a, factors[0]), "b": (b, factors[1]), "c": (c, result)}
    _products(how, alpha, factors, (a, b), beta, result, c)
    for name, (address, layout) in places.items():
        begin = address - address_of(owner_of(address, address + 1))  # memory of CuPy begins at an aligned address
        steps = [begin] + [layout["stride"] * STORED[layout["type"]].itemsize] * (layout["count"] > 1)
        aligned = all(step % wanted[f"align_{name}"] == 0 for step in steps)
        _check(aligned, f"{name} is not aligned to {wanted[f'align_{name}']} bytes")
    algorithm = algorithm._obj.algorithm[0]
    products.append(SimpleNamespace(asked=_algorithms[algorithm], count=result["count"], addresses=(a, b, c)))
    return 0


def _products(how: dict, alpha, factors, addresses, beta, result, c_address) -> None:
    kind, count = factors[0]["type"], result["count"]
    m, n = result["rows"], result["columns"]
    transposed = how["transa"], how["transb"]
    k = factors[0]["rows" if transposed[0] else "columns"]
    stored = ((k, m) if transposed[0] else (m, k)), ((n, k) if transposed[1] else (k, n))
    shapes = [(one["rows"], one["columns"]) for one in factors]
    _check(shapes == list(stored) and min(m, n, k, count) > 0, f"factors {shapes}, orders {transposed}, to {m} x {n}")
    _check({one["count"] for one in factors} == {count}, "as many matrices of each")
    number, of_result, of_factors = COMPUTE[how["compute"]]
    fits = factors[1]["type"] == kind and kind in of_factors and result["type"] == how["scale"] == of_result
    _check(fits, f"not supported: {kind}, {factors[1]['type']} -> {result['type']}, summed in {how['compute']}")
    one_and_zero = (number.from_address(alpha).value, number.from_address(beta).value) == (1, 0)
    _check(one_and_zero, "only alpha = 1 and beta = 0 are used here")
    _check(count == 1 or result["stride"] >= m * n, f"results overlap, {result['stride']} elements apart")
    a, b, c = (
        _matrices(at, one["type"], one["leading"], one["stride"], one["rows"], one["columns"], count)
        for at, one in zip((*addresses, c_address), (*factors, result), strict=True)
    )
    _check(not np.may_share_memory(c, a) and not np.may_share_memory(c, b), "the result overlaps a factor")
    a, b = (
        one.swapaxes(-1, -2) if order else one
        for one, order in zip((_numbers(a, kind), _numbers(b, kind)), transposed, strict=True)
    )  # read by rows: (count, k, m) and (count, n, k)
    c[...] = b @ a
    product(NAMES[kind])


def _matrices(address: int, kind: int, leading: int, stride: int, rows: int, columns: int, count: int) -> np.ndarray:
    """Return the matrices at an address, stored by columns: (count, columns, rows), a view of device memory."""
    _check(leading >= rows, f"leading dimension {leading} of matrices with {rows} rows")
    _check(stride >= 0, f"stride {stride} between matrices")
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


LIBRARY = SimpleNamespace(
    cublasLtCreate=partial(create, "Create"), cublasLtMatmul=partial(multiply),
    cublasLtMatmulAlgoGetHeuristic=ask, cublasLtMatmulAlgoCheck=check,
    **{f"cublasLt{kind}Create": partial(create, kind) for kind in ATTRIBUTES},
    **{f"cublasLt{kind}SetAttribute": partial(set_attribute, kind) for kind in ATTRIBUTES},
)  # fmt: skip
_load = ctypes.cdll.LoadLibrary
ctypes.cdll.LoadLibrary = lambda name: LIBRARY if name == "libcublasLt.so.0" else _load(name)  # 0: of getVersion
