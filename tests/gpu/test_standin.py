"""The stand-in for CuPy, its streams and its NCCL are as strict as the real ones or stricter, with their arguments.

Where CuPy is installed, it says itself which arguments, names and dtypes it has; it can be imported without a GPU.
"""

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
from own_gpus import with_gpus

import minidist as md
from minidist.backend import xp
from minidist.course.answers import ROOT

HERE = ROOT / "tests" / "gpu" / "standin"
LIMIT = 300  # seconds
needs_cupy = pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")


def refusal(call, *arguments) -> str:
    """How a call ends: its error, or "none"."""
    try:
        call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


REFUSED = {
    r"TypeError": [  # what would cross unnoticed
        lambda cp, x: np.asarray(x),
        lambda cp, x: np.exp(x),
        lambda cp, x: np.sum(x),
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
    r"TypeError: .*(argument|cupy's)": [  # arguments that CuPy lacks
        lambda cp, x: x.max(initial=0),
        lambda cp, x: cp.sum(x, where=x > 0),
        lambda cp, x: cp.exp(x, where=x > 0),
        lambda cp, x: cp.zeros(3, like=x),
        lambda cp, x: x.astype("f4", subok=True, device="cpu"),
    ],
    r"AttributeError": [  # names that CuPy lacks
        *(lambda cp, x, name=name: getattr(cp, name) for name in ("errstate", "float128", "str_", "vectorize")),
        lambda cp, x: x.flags.writeable,
    ],
    r"RuntimeError: .*non-contiguous": [lambda cp, x: cp.zeros((4, 4))[:, :2].set(np.ones((4, 2)))],
    r"TypeError: .*odd address": [lambda cp, x: cp.zeros(9, "u1")[1:].view("f4")],
    r"TypeError: .*column_sums": [  # sums whose order depends on how many there are
        lambda cp, x: cp.ones((2, 17, 3), "f4").sum(axis=-2),
        lambda cp, x: cp.sum(cp.ones((2, 17, 3), "f4"), axis=(1,)),
        lambda cp, x: cp.ones((2, 17, 3), "f4").mean(1),
    ],
    r"TypeError: .*matmul_each": [  # products of views at any address
        lambda cp, x: cp.ones((5, 3), "f4") @ cp.ones(13, "f4")[1:].reshape(3, 4),
        lambda cp, x: cp.ones(13, "f4")[1:].reshape(3, 4).T @ cp.ones((5, 3), "f4").T,
    ],
    r"none": [
        lambda cp, x: [cp.ones((2, *shape), "f4").sum(axis=-2) for shape in ((17, 16), (16, 3))],
        lambda cp, x: [cp.ones((2, 17, 3), "f4").sum(axis) for axis in (-1, (1, 2), None)],
        lambda cp, x: cp.ones((2, 17, 3), "f4").sum(axis=1, dtype="f8"),  # rounded afterwards
        lambda cp, x: cp.ones((5, 3), "f4") @ cp.ones(13, "f4")[1:].reshape(3, 4).copy(),
    ],
}


def test_what_cupy_does_not_take_is_refused(standin):
    wrong = []
    for error, calls in REFUSED.items():
        for number, call in enumerate(calls):
            told = refusal(call, standin, standin.asarray(np.arange(3.0)))
            wrong += [] if re.match(error, told) else [(error, number, told)]
    assert wrong == []


def test_every_stop_is_counted(standin):
    """CuPy counts a mask's elements also where it writes, and looks at the numbers that it counts."""
    x = standin.asarray(np.arange(3.0))
    assert float(x[1]) == 1 and bool(x.any()) and x.sum().item() == 3
    x.get()
    x[x > 0]
    x[x > 0] = 5
    x.set(np.ones(3))
    standin.bincount(x.astype("i8"), minlength=4)
    counts = {kind: count for (kind, _), count in standin.crossings.items()}
    assert counts == {"to device": 2, "scalar": 3, "to host": 1, "size": 3}


def test_it_computes_as_cupy_where_numpy_does_not(standin):
    """Numbers are arrays without axes, elements are views, -0.0 fills as 0.0, and ``add.at`` has orders of its own."""
    x = standin.zeros(3, "f4")
    for number in (x.sum(), x.max(), x[0], standin.sum(x), x[0] + 1, np.float32(2) * x[0]):
        assert isinstance(number, standin.ndarray) and number.shape == () and number.dtype == np.float32
    x[0] += 5
    element = x[1]
    element += 7
    assert x.tolist() == [5, 7, 0]
    x = standin.ones((2, 2), "f4")
    x[:] = -0.0  # CuPy clears contiguous memory; ``full`` does not
    x[:, :1] = -0.0
    assert np.signbit(x.get()).tolist() == [[True, False], [True, False]]
    assert np.signbit(standin.full(2, -0.0, "f4").get()).all()
    values, found = standin.asarray(np.array([1, 1e8, -1e8], "f4")), set()
    for _ in range(20):
        target = standin.zeros(1, "f4")
        standin.add.at(target, standin.asarray([0, 0, 0]), values)
        found.add(float(target))
    assert found == {0.0, 1.0}


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


# cuBLAS

PRODUCT = {  # 2 x 3 by 3 x 4, row by row, as cuBLAS takes it: 4 x 3 by 3 x 2, column by column
    "handle": 0xB1A5, "transa": 0, "transb": 0, "m": 4, "n": 2, "k": 3, "Atype": 14, "lda": 4, "Btype": 14, "ldb": 3,
    "Ctype": 0, "ldc": 4, "computeType": 68, "algo": -1,
}  # fmt: skip
BATCHED = {"strideA": 12, "strideB": 6, "strideC": 8, "batchCount": 2}
CALLS = [  # a change of the call, and its error
    ({}, "none"),
    ({"transa": 1, "lda": 3}, "none"),
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
    ({"A": "c", "Atype": 0, "B": "c", "Btype": 0}, "overlaps"),
    ({"beta": "alpha"}, "only alpha = 1 and beta = 0"),
    ({"B": "freed"}, "no device array lives"),
    (BATCHED, "none"),
    (BATCHED | {"strideC": 7}, "overlap"),
    (BATCHED | {"strideA": 13}, "elements 0 to 25 of 24"),
    (BATCHED | {"strideB": 0}, "stride 0"),
    (BATCHED | {"batchCount": 3}, "of 24"),
]


def test_cublas_takes_what_is_there_and_fits(standin):
    wrong = []
    for changes, error in CALLS:
        a, b, c = standin.zeros((2, 3, 4), "u2"), standin.zeros((2, 2, 3), "u2"), standin.ones((2, 2, 4), "f4")
        one, zero, freed = np.ones(1, "f4"), np.zeros(1, "f4"), standin.zeros(999).data.ptr
        at = {"a": a.data.ptr, "b": b.data.ptr, "c": c.data.ptr, "freed": freed, "alpha": one.ctypes.data}
        call = PRODUCT | {"A": "a", "B": "b", "C": "c", "alpha": "alpha", "beta": zero.ctypes.data} | changes
        call = {name: at.get(value, value) for name, value in call.items()}
        multiply = standin.cuda.cublas.gemmStridedBatchedEx if "batchCount" in changes else standin.cuda.cublas.gemmEx
        told = refusal(lambda multiply=multiply, call=call: multiply(**call))
        wrong += [] if error in told else [(changes, told)]
        if error == "none":
            assert not c.get()[: call.get("batchCount", 1)].any()
    assert wrong == []


# Streams and NCCL

CALL = "comm.allReduce({}, 8, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, stream.ptr)"
GOOD = CALL.format("x.data.ptr, y.data.ptr")
WAIT = "; cp.cuda.Stream.null.wait_event(stream.record())"
TWO = "cp.cuda.set_device_count(2); cp.cuda.Device(1).use(); "
PROGRAMS = [
    (GOOD + WAIT + "; assert y.get().tolist() == list(range(8))", "none"),
    (CALL.format("x.data.ptr, host.ctypes.data"), "NcclError: NCCL_ERROR_INVALID_ARGUMENT: .* in no array"),
    (CALL.format("x[1:].data.ptr, y.data.ptr"), "NcclError: NCCL_ERROR_INVALID_ARGUMENT: .* in no array"),
    (CALL.format("x, y.data.ptr"), "TypeError: .*integer"),
    (CALL.format("x[:4].data.ptr, x[2:].data.ptr").replace("8", "4", 1), "NcclError: .*overlap"),
    (GOOD.replace("stream.ptr", "0"), "KeyError"),
    (GOOD + "; y + 1", "RuntimeError: another stream writes this array"),
    (GOOD + "; x + 1", "none"),  # to read what is read is allowed
    ("x += 1; " + GOOD, "RuntimeError: the stream does not wait for what the null stream computes"),
    (GOOD.replace("x.data", "x.copy().data"), "NcclError: .* in no array"),  # freed at once
    ("z = cp.empty(8); " + GOOD.replace("y.", "z.") + "; del z" + WAIT, "RuntimeError: an array was freed"),
    ("cp.cuda.Stream()", "NotImplementedError"),
    ("nccl.NcclCommunicator(1, (1,) * 128, 0)", "TypeError: .*expected bytes, got tuple"),
    ("nccl.NcclCommunicator(1, b'1', 0)", "ValueError: commId length 1 != 128"),
    ("nccl.NcclCommunicator(1, nccl.get_unique_id(), 1)", "NcclError: NCCL_ERROR_INVALID_ARGUMENT"),
    ("nccl.groupEnd()", "NcclError: NCCL_ERROR_INVALID_USAGE"),
    ("cp.cuda.Device(1).use()", "RuntimeError: cudaErrorInvalidDevice"),
    (TWO + "x + 1", "ValueError: Array device must be same"),
    (TWO + "x.get()", "none"),
    (TWO + "stream.use()", "RuntimeError: The device that the stream"),
]


def alone(world, program: str) -> str:
    """Run a program with a communicator of one rank, a stream and arrays; return the error."""
    import cupy as cp

    nccl = cp.cuda.nccl
    comm, stream = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0), cp.cuda.Stream(non_blocking=True)
    x, y, host = cp.asarray(np.arange(8.0)), cp.empty(8), np.zeros(8)
    stream.wait_event(cp.cuda.Stream.null.record())
    names = {"cp": cp, "nccl": nccl, "comm": comm, "stream": stream, "x": x, "y": y, "host": host, "world": world}
    return refusal(exec, program, names)


def test_what_a_gpu_would_do_wrong_raises(device_ranks):
    told = [device_ranks(1).run(with_gpus, 1, alone, program)[0] for program, _ in PROGRAMS]
    pairs = zip(PROGRAMS, told, strict=True)
    assert [(program, found) for (program, error), found in pairs if not re.match(error, found)] == []


def shared(world) -> str:
    """All ranks on GPU 0."""
    import cupy as cp

    nccl = cp.cuda.nccl
    cp.cuda.Device(0).use()
    unique_id = np.zeros(128, np.uint8)
    if world.rank == 0:
        unique_id[:] = np.frombuffer(nccl.get_unique_id(), np.uint8)
    md.broadcast(unique_id, 0, world)
    return refusal(nccl.NcclCommunicator, world.size, unique_id.tobytes(), world.rank)


def hangs(world) -> None:
    """What the library does not compare: the second call of a kind on one rank, another on the other."""
    x = xp.asarray(np.ones(4))
    md.all_reduce(x, group=world)
    md.broadcast(x, 0, world)
    md.all_reduce(x, group=world) if world.rank == 0 else md.broadcast(x, 0, world)
    x.get()


def test_two_ranks_on_one_device_are_refused_and_what_hangs_on_a_gpu_is_told(device_ranks):
    for found in device_ranks(2).run(with_gpus, 2, shared):
        assert found.startswith("NcclError: NCCL_ERROR_INVALID_USAGE") and "Duplicate GPU detected" in found
    with pytest.raises(md.RankFailed, match="HangsOnAGPU"):
        device_ranks(2).run(with_gpus, 2, hangs)


# What CuPy says itself


def output_of(*command: str, path: tuple = ()) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "CUPY_ACCELERATORS"}
    environment["PYTHONPATH"] = os.pathsep.join(map(str, (ROOT, *path)))
    command = [sys.executable, *command]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=LIMIT, env=environment).stdout


FIND = """
from contextlib import suppress
from minidist import backend
import cupy
before = cupy._core.get_reduction_accelerators()
with suppress(RuntimeError):
    backend.find("cupy")
print(before, cupy._core.get_reduction_accelerators(), cupy._core.get_routine_accelerators())
"""


@pytest.mark.parametrize("path", [(HERE,), pytest.param((), marks=needs_cupy)], ids=["the stand-in", "CuPy"])
def test_cub_adds_nothing_whoever_imported_cupy_first(path):
    assert output_of("-c", FIND, path=path).splitlines()[-1] == "[1] [] []"


@pytest.mark.skipif(find_spec("cupy_backends") is None, reason="CuPy is not installed")
def test_cublas_takes_the_arguments_of_cupys(standin):
    """They are read from CuPy's compiled module, which cannot be imported without cuBLAS."""
    libraries = Path(find_spec("cupy_backends").origin).parent / "cuda" / "libs"
    compiled = next(libraries.glob("cublas.*so")).read_bytes()
    for name in ("gemmEx", "gemmStridedBatchedEx"):
        theirs = re.search(rb"\0" + name.encode() + rb"\(([^)]*handle[^)]*)\)", compiled)[1].decode()
        ours = inspect.signature(getattr(standin.cuda.cublas, name)).parameters
        assert [parameter.split()[-1] for parameter in theirs.split(", ")] == list(ours)


@needs_cupy
def test_cupy_takes_these_arguments():
    code = (
        "import json, sys; sys.path.append(sys.argv[1]); import cupy, record; print(json.dumps(record.recorded(cupy)))"
    )
    recorded = json.loads(output_of("-c", code, str(HERE)))
    ours = json.loads((HERE / "cupy" / "signatures.json").read_text(encoding="utf-8"))
    if recorded["version"].split(".")[0] != ours["version"].split(".")[0]:
        pytest.skip(f"CuPy {recorded['version']} is installed; the signatures are those of {ours['version']}")
    assert recorded | {"version": None} == ours | {"version": None}


@needs_cupy
def test_cupy_returns_numpys_dtypes():
    """So that the stand-in may."""
    said = output_of(str(HERE / "promotion.py"))
    compared, differ = map(int, re.search(r"(\d+) compared, (\d+) differ", said).groups())
    assert compared > 5000 and differ == 0, said


METHODS = (
    *("abort", "allGather", "allReduce", "broadcast", "check_async_error", "destroy"),
    *("recv", "reduce", "reduceScatter", "send"),
)
TELL = f"""
import json
from cupy.cuda import nccl
numbers = {{name: getattr(nccl, name) for name in dir(nccl) if name.startswith("NCCL_")}} if nccl.available else None
methods = {{n: getattr(nccl.NcclCommunicator, n).__doc__ for n in {METHODS}}} if nccl.available else None
print(json.dumps([numbers, methods, str(nccl.NcclError(5)) if nccl.available else None]))
"""


@needs_cupy
def test_names_and_arguments_of_nccl_are_cupys(standin):
    """NCCL can be loaded without a GPU. A method's arguments are in its first line of documentation."""
    numbers, methods, error = json.loads(output_of("-c", TELL))
    if numbers is None:
        pytest.skip("CuPy finds no NCCL: pip install nvidia-nccl-cu12")
    nccl = standin.cuda.nccl
    assert {name: getattr(nccl, name) for name in numbers} == numbers
    assert str(nccl.NcclError(5)) == error
    for name in METHODS:
        theirs = re.match(r"NcclCommunicator\.\w+\((.*)\)", methods[name].splitlines()[0])[1]
        ours = inspect.signature(getattr(nccl.NcclCommunicator, name)).parameters
        assert list(ours) == [argument.split()[-1] for argument in theirs.split(", ")], name
