"""The stand-in for CuPy is as strict as CuPy, or stricter, and takes the arguments that CuPy takes."""

import copy
import inspect
import json
import os
import pickle
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from minidist.course.answers import ROOT

HERE = ROOT / "tests" / "gpu" / "standin"
LIMIT = 300  # seconds


@pytest.mark.parametrize(
    "implicit",
    [
        lambda cp, x: np.asarray(x),
        lambda cp, x: np.exp(x),
        lambda cp, x: np.sum(x),
        lambda cp, x: np.add(x, x),
        lambda cp, x: memoryview(x),
        lambda cp, x: x + np.ones(3),
        lambda cp, x: np.ones(3) + x,
        lambda cp, x: x.__iadd__(np.ones(3)),
        lambda cp, x: cp.add(x, np.ones(3)),
        lambda cp, x: cp.exp(x, out=np.ones(3)),
        lambda cp, x: cp.stack([x, np.ones(3)]),
        lambda cp, x: cp.where(x > 0, x, np.ones(3)),
        lambda cp, x: x[np.array([0])],
        lambda cp, x: x[[0, 1]],
        lambda cp, x: x.__setitem__(slice(None), np.ones(3)),
        lambda cp, x: cp.asarray(["text"]),
        lambda cp, x: pickle.dumps(x),
        lambda cp, x: copy.deepcopy(x),
    ],
)
def test_what_would_cross_unnoticed_is_refused(standin, implicit):
    with pytest.raises(TypeError):
        implicit(standin, standin.asarray(np.arange(3.0)))


@pytest.mark.parametrize(
    "unknown",
    [
        lambda cp, x: x.max(initial=0),
        lambda cp, x: cp.sum(x, where=x > 0),
        lambda cp, x: cp.exp(x, where=x > 0),
        lambda cp, x: cp.zeros(3, like=x),
        lambda cp, x: x.astype("f4", subok=True, device="cpu"),
    ],
)
def test_arguments_that_cupy_lacks_are_refused(standin, unknown):
    with pytest.raises(TypeError, match=r"argument|cupy's"):
        unknown(standin, standin.asarray(np.arange(3.0)))


def test_names_that_cupy_lacks_are_missing(standin):
    for name in ("errstate", "float128", "str_", "vectorize", "add_docstring", "einsum"):
        assert not hasattr(standin, name), name
    assert not hasattr(standin.empty(3).flags, "writeable")


def test_every_stop_is_counted(standin):
    x = standin.asarray(np.arange(3.0))
    assert float(x[1]) == 1 and bool(x.any()) and x.sum().item() == 3
    x.get()
    x[x > 0]
    x[x > 0] = 5  # CuPy counts the elements here, too
    x.set(np.ones(3))
    assert {kind: count for (kind, _), count in standin.crossings.items()} == {
        "to device": 2,
        "scalar": 3,
        "to host": 1,
        "size": 2,
    }


def test_numbers_are_arrays_without_axes_and_elements_are_views(standin):
    x = standin.zeros(3, "f4")
    for number in (x.sum(), x.max(), x[0], standin.sum(x), x[0] + 1, np.float32(2) * x[0]):
        assert isinstance(number, standin.ndarray) and number.shape == () and number.dtype == np.float32
    x[0] += 5
    element = x[1]
    element += 7
    assert x.tolist() == [5, 7, 0]


def test_looking_for_a_size_stops_the_host(standin):
    """CuPy counts a mask's elements also where it writes, and looks at the numbers that it counts."""
    x = standin.asarray(np.arange(3))
    for look in (lambda: standin.bincount(x, minlength=4), lambda: x.__setitem__(x > 1, 0), lambda: x[x > 1]):
        standin.crossings.clear()
        look()
        assert [kind for kind, _ in standin.crossings] == ["size"]


def test_subnormal_numbers_are_zeros(standin):
    """Of float32, wherever something is computed: CuPy compiles with -ftz=true. What is moved or looked at stays."""
    tiny = np.array([1e-39, -1e-39, 1e-38, 0, -0.0, np.nan], "f4")
    x = standin.asarray(tiny)
    flushed = np.array([0, -0.0, 0, 0, -0.0, np.nan], "f4")
    y = x.copy()
    y *= 1
    assert [(one * 1).get().tobytes() for one in (x, np.float32(1) * x, y)] == 3 * [flushed.tobytes()]
    assert standin.exp2(standin.asarray(np.array([-130], "f4"))).tolist() == [0]
    assert (standin.asarray(np.array([2.0**-126], "f4")) / 2).tolist() == [0]
    assert standin.concatenate([x, x]).get()[:6].tobytes() == x.view("u4").view("f4").get().tobytes() == tiny.tobytes()
    assert (standin.asarray(tiny.astype("f8")) * 1).tolist()[0] != 0


def test_memory_that_is_not_as_a_kernel_needs_it_is_refused(standin):
    x = standin.zeros((4, 4), "f4")
    with pytest.raises(RuntimeError, match="non-contiguous"):
        x[:, :2].set(np.ones((4, 2), "f4"))
    with pytest.raises(TypeError, match="odd address"):
        standin.zeros(9, "u1")[1:].view("f4")


def test_filling_with_a_negative_zero_writes_a_positive_one(standin):
    """CuPy clears contiguous memory; ``full`` does not."""
    x = standin.ones((2, 2), "f4")
    x[:] = -0.0
    x[:, :1] = -0.0
    assert np.signbit(x.get()).tolist() == [[True, False], [True, False]]
    assert np.signbit(standin.full(2, -0.0, "f4").get()).all()


def test_add_at_has_an_order_of_its_own(standin):
    """As atomic additions have, at each call: a sum that depends on the order shows."""
    values, found = standin.asarray(np.array([1, 1e8, -1e8], "f4")), set()
    for _ in range(20):
        target = standin.zeros(1, "f4")
        standin.add.at(target, standin.asarray([0, 0, 0]), values)
        found.add(float(target))
    assert found == {0.0, 1.0}


PRODUCT = {  # 2 x 3 by 3 x 4, row by row, as cuBLAS takes it: 4 x 3 by 3 x 2, column by column
    "handle": 0xB1A5, "transa": 0, "transb": 0, "m": 4, "n": 2, "k": 3, "Atype": 14, "lda": 4, "Btype": 14, "ldb": 3,
    "Ctype": 0, "ldc": 4, "computeType": 68, "algo": -1,
}  # fmt: skip
BATCHED = {"strideA": 12, "strideB": 6, "strideC": 8, "batchCount": 2}


def test_sums_whose_order_depends_on_how_many_there_are_are_refused(standin):
    few, many, short = (standin.ones(shape, "f4") for shape in ((2, 17, 3), (2, 17, 16), (2, 16, 3)))
    for summed in (lambda x: x.sum(axis=-2), lambda x: standin.sum(x, axis=(1,)), lambda x: x.mean(1)):
        with pytest.raises(TypeError, match="column_sums"):
            summed(few)
        summed(many)
        summed(short)
    few.sum(axis=-1)
    few.sum(axis=(1, 2))
    few.sum()
    few.sum(axis=1, dtype="f8")  # rounded afterwards


def test_products_of_views_at_any_address_are_refused(standin):
    flat = standin.ones(1 + 3 * 4, "f4")
    x, view = standin.ones((5, 3), "f4"), flat[1:].reshape(3, 4)
    assert (x @ view.copy()).shape == (5, 4)
    for product in (lambda: x @ view, lambda: view.T @ x.T):
        with pytest.raises(TypeError, match="matmul_each"):
            product()


FIND = """
from minidist import backend
import cupy
before = cupy._core.get_reduction_accelerators()
try:
    backend.find("cupy")
except RuntimeError as error:
    print(error)
print(before, cupy._core.get_reduction_accelerators(), cupy._core.get_routine_accelerators())
"""


@pytest.mark.parametrize("real", [False, True], ids=["the stand-in", "CuPy"])
def test_cub_adds_nothing_whoever_imported_cupy_first(real):
    if real and find_spec("cupy") is None:
        pytest.skip("CuPy is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "CUPY_ACCELERATORS"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT), *([] if real else [str(HERE)])])
    command = [sys.executable, "-c", FIND]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT, env=environment).stdout
    assert told.splitlines()[-1] == "[1] [] []"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, None),
        ({"transa": 1, "lda": 3}, None),
        ({"handle": 0}, "NOT_INITIALIZED"),
        ({"m": 0}, "INVALID_VALUE"),
        ({"transb": 3}, "INVALID_VALUE"),
        ({"algo": 99}, "INVALID_VALUE"),
        ({"lda": 3}, "leading dimension 3 of matrices with 4 rows"),
        ({"ldb": 2}, "leading dimension 2 of matrices with 3 rows"),
        ({"ldc": 3}, "leading dimension 3 of matrices with 4 rows"),
        ({"lda": 11}, "elements 0 to 26 of 24"),
        ({"k": 20, "ldb": 20}, "of 24"),
        ({"n": 5}, "of 12"),
        ({"Atype": 0}, "NOT_SUPPORTED"),
        ({"Atype": 0, "Btype": 0}, "float32 is read from, or written to, an array of uint16"),
        ({"Ctype": 14}, "NOT_SUPPORTED"),
        ({"computeType": 64}, "NOT_SUPPORTED"),
        ({"computeType": 70}, "NOT_SUPPORTED"),
        ({"A": 4096}, "no device array lives at 0x1000"),
        ({"m": 4.0}, "an integer is required"),
        (BATCHED, None),
        (BATCHED | {"strideC": 7}, "overlap"),
        (BATCHED | {"strideA": 13}, "elements 0 to 25 of 24"),
        (BATCHED | {"strideB": 0}, "stride 0"),
        (BATCHED | {"batchCount": 3}, "of 24"),
    ],
)
def test_cublas_takes_what_is_there_and_fits(standin, changes, message):
    a, b, c = standin.zeros((2, 3, 4), "u2"), standin.zeros((2, 2, 3), "u2"), standin.ones((2, 2, 4), "f4")
    one, zero = np.ones(1, "f4"), np.zeros(1, "f4")
    call = PRODUCT | {"A": a.data.ptr, "B": b.data.ptr, "C": c.data.ptr}
    call |= {"alpha": one.ctypes.data, "beta": zero.ctypes.data} | changes
    multiply = standin.cuda.cublas.gemmStridedBatchedEx if "batchCount" in changes else standin.cuda.cublas.gemmEx
    if message is None:
        multiply(**call)
        assert not c.get()[: call.get("batchCount", 1)].any()
    else:
        with pytest.raises((TypeError, RuntimeError), match=message):
            multiply(**call)


def test_cublas_refuses_memory_that_is_free_and_a_result_over_a_factor(standin):
    a, b, c = standin.zeros((3, 4), "u2"), standin.zeros((2, 3), "u2"), standin.zeros((2, 4), "f4")
    one, zero = np.ones(1, "f4"), np.zeros(1, "f4")
    call = PRODUCT | {"alpha": one.ctypes.data, "beta": zero.ctypes.data, "C": c.data.ptr}
    numbers = standin.zeros((3, 4), "f4")
    with pytest.raises(RuntimeError, match="overlaps"):
        standin.cuda.cublas.gemmEx(**call | {"Atype": 0, "A": numbers.data.ptr, "Btype": 0, "B": c.data.ptr})
    with pytest.raises(RuntimeError, match="only alpha = 1 and beta = 0"):
        standin.cuda.cublas.gemmEx(**call | {"A": a.data.ptr, "B": b.data.ptr, "beta": one.ctypes.data})
    freed = b.data.ptr
    del b
    with pytest.raises(RuntimeError, match="no device array lives"):
        standin.cuda.cublas.gemmEx(**call | {"A": a.data.ptr, "B": freed})


@pytest.mark.skipif(find_spec("cupy_backends") is None, reason="CuPy is not installed")
def test_cublas_takes_the_arguments_of_cupys(standin):
    """They are read from CuPy's compiled module, which cannot be imported without cuBLAS."""
    libraries = Path(find_spec("cupy_backends").origin).parent / "cuda" / "libs"
    compiled = next(libraries.glob("cublas.*so")).read_bytes()
    for name in ("gemmEx", "gemmStridedBatchedEx"):
        theirs = re.search(rb"\0" + name.encode() + rb"\(([^)]*handle[^)]*)\)", compiled)[1].decode()
        ours = inspect.signature(getattr(standin.cuda.cublas, name)).parameters
        assert [parameter.split()[-1] for parameter in theirs.split(", ")] == list(ours)


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupy_takes_these_arguments():
    """CuPy can be imported without a GPU."""
    code = (
        "import json, sys; sys.path.append(sys.argv[1]); import cupy, record; print(json.dumps(record.recorded(cupy)))"
    )
    command = [sys.executable, "-c", code, str(HERE)]
    recorded = json.loads(subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT).stdout)
    ours = json.loads((HERE / "cupy" / "signatures.json").read_text(encoding="utf-8"))
    if recorded["version"].split(".")[0] != ours["version"].split(".")[0]:
        pytest.skip(f"CuPy {recorded['version']} is installed; the signatures are those of {ours['version']}")
    assert recorded | {"version": None} == ours | {"version": None}


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_cupy_returns_numpys_dtypes():
    """So that the stand-in may. CuPy can be asked without a GPU."""
    command = [sys.executable, str(HERE / "promotion.py")]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT).stdout
    compared, differ = map(int, re.search(r"(\d+) compared, (\d+) differ", said).groups())
    assert compared > 5000 and differ == 0, said
