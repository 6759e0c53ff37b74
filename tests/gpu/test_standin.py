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

import numpy as np
import pytest
from own_gpus import with_gpus

from minidist.course.answers import ROOT

HERE = ROOT / "tests" / "gpu" / "standin"
LIMIT = 300  # seconds
needs_cupy = pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")


def refusal(call, *arguments) -> str:
    """Return a call's error, or "none"."""
    try:
        call(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


REFUSED = {  # the beginning of the error -> calls
    "TypeError": [  # what would cross unnoticed
        "np.asarray(x)", "np.exp(x)", "np.sum(x)", "memoryview(x)", "x + np.ones(3)", "np.ones(3) + x",
        "x.__iadd__(np.ones(3))", "cp.add(x, np.ones(3))", "cp.exp(x, out=np.ones(3))", "cp.stack([x, np.ones(3)])",
        "cp.where(x > 0, x, np.ones(3))", "x[np.array([0])]", "x[[0, 1]]", "x.__setitem__(0, np.ones(3))",
        "cp.asarray(['text'])", "pickle.dumps(x)", "copy.deepcopy(x)",
    ],
    "TypeError: .*(argument|cupy's)": [  # arguments that CuPy lacks
        "x.max(initial=0)", "cp.sum(x, where=x > 0)", "cp.exp(x, where=x > 0)", "cp.zeros(3, like=x)",
        "x.astype('f4', subok=True, device='cpu')",
    ],
    "AttributeError": ["cp.errstate", "cp.float128", "cp.str_", "cp.vectorize", "x.flags.writeable"],
    "TypeError: .*odd address": ["cp.zeros(9, 'u1')[1:].view('f4')"],
    "TypeError: .*column_sums": [  # sums whose order depends on how many there are
        "terms.sum(axis=-2)", "cp.sum(terms, axis=(1,))", "terms.mean(1)",
    ],
    "TypeError: .*matmul_each": [  # products of views at any address
        "cp.ones((5, 3), 'f4') @ view", "view.T @ cp.ones((3, 5), 'f4')",
    ],
    "none": [
        "cp.ones((2, 17, 16), 'f4').sum(axis=-2)", "cp.ones((2, 16, 3), 'f4').sum(axis=-2)", "terms.sum(-1)",
        "terms.sum((1, 2))", "terms.sum()", "terms.sum(axis=1, dtype='f8')", "cp.ones((5, 3), 'f4') @ view.copy()",
    ],
}  # fmt: skip


def test_what_cupy_does_not_take_is_refused(standin):
    wrong = []
    names = {"np": np, "cp": standin, "copy": copy, "pickle": pickle, "x": standin.asarray(np.arange(3.0))}
    names |= {"terms": standin.ones((2, 17, 3), "f4"), "view": standin.ones(13, "f4")[1:].reshape(3, 4)}
    for error, calls in REFUSED.items():
        told = {call: refusal(eval, call, names) for call in calls}
        wrong += [(call, found) for call, found in told.items() if not re.match(error, found)]
    assert wrong == []


# Streams and NCCL

CALL = "comm.allReduce({}, 8, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, stream.ptr)"
GOOD = CALL.format("x.data.ptr, y.data.ptr")
WAIT = "; cp.cuda.Stream.null.wait_event(stream.record())"
TWO = "cp.cuda.set_device_count(2); cp.cuda.Device(1).use(); "
PROGRAMS = [
    (GOOD + WAIT + "; assert y.get().tolist() == list(range(8))", "none"),
    (GOOD + "; x + 1", "none"),  # to read what is read is allowed
    (CALL.format("x.data.ptr, host.ctypes.data"), "NcclError: NCCL_ERROR_INVALID_ARGUMENT: .* in no array"),
    (CALL.format("x[1:].data.ptr, y.data.ptr"), "NcclError: .* in no array"),
    (CALL.format("x[:4].data.ptr, x[2:].data.ptr").replace("8", "4", 1), "NcclError: .*overlap"),
    (GOOD.replace("stream.ptr", "0"), "KeyError"),
    (GOOD + "; y + 1", "RuntimeError: another stream writes this array"),
    ("x += 1; " + GOOD, "RuntimeError: the stream does not wait for what the null stream computes"),
    (GOOD.replace("x.data", "x.copy().data"), "NcclError: .* in no array"),  # freed at once
    ("z = cp.empty(8); " + GOOD.replace("y.", "z.") + "; del z" + WAIT, "RuntimeError: an array was freed"),
    ("cp.cuda.Stream()", "NotImplementedError"),
    ("nccl.groupEnd()", "NcclError: NCCL_ERROR_INVALID_USAGE"),
    ("cp.cuda.Device(1).use()", "RuntimeError: cudaErrorInvalidDevice"),
    (TWO + "x + 1", "ValueError: the array is on device 0"),
    (TWO + "x.get()", "none"),
    (TWO + "stream.use()", "RuntimeError: the stream is of device 0"),
]


def alone(world, program: str) -> str:
    """Run a program with a communicator of one rank, a stream and arrays; return the error."""
    import cupy as cp

    nccl = cp.cuda.nccl
    comm, stream = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0), cp.cuda.Stream(non_blocking=True)
    x, y, host = cp.asarray(np.arange(8.0)), cp.empty(8), np.zeros(8)
    stream.wait_event(cp.cuda.Stream.null.record())
    return refusal(
        exec, program, {"cp": cp, "nccl": nccl, "comm": comm, "stream": stream, "x": x, "y": y, "host": host}
    )


def test_what_a_gpu_would_do_wrong_raises(device_ranks):
    told = [device_ranks(1).run(with_gpus, 1, alone, program)[0] for program, _ in PROGRAMS]
    pairs = zip(PROGRAMS, told, strict=True)
    assert [(program, found) for (program, error), found in pairs if not re.match(error, found)] == []


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
    """CuPy does, so the stand-in may."""
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
    ours = {name: getattr(nccl, name) for name in dir(nccl) if name.startswith("NCCL_")}
    assert {name: numbers.get(name) for name in ours} == ours
    assert str(nccl.NcclError(5)) == error
    for name in METHODS:
        theirs = re.match(r"NcclCommunicator\.\w+\((.*)\)", methods[name].splitlines()[0])[1]
        ours = inspect.signature(getattr(nccl.NcclCommunicator, name)).parameters
        assert list(ours) == [argument.split()[-1] for argument in theirs.split(", ")], name
