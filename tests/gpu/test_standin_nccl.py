"""The stand-in's streams, events and NCCL are as strict as the real ones, or stricter."""

import inspect
import json
import re
import subprocess
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from own_gpus import with_gpus

import minidist as md
from minidist.backend import xp

LIMIT = 120  # seconds

# What CuPy says, where it finds NCCL: names of numbers, and each method's first line of documentation
TELL = """
import json
from cupy.cuda import nccl
numbers = {name: getattr(nccl, name) for name in dir(nccl) if name.startswith("NCCL_")} if nccl.available else None
methods = {n: getattr(nccl.NcclCommunicator, n).__doc__ for n in METHODS} if nccl.available else None
error = str(nccl.NcclError(5)) if nccl.available else None
print(json.dumps([numbers, methods, error]))
"""
METHODS = (
    *("abort", "allGather", "allReduce", "broadcast", "check_async_error", "destroy", "device_id", "rank_id", "recv"),
    *("reduce", "reduceScatter", "send", "size"),
)


@pytest.mark.skipif(find_spec("cupy") is None, reason="CuPy is not installed")
def test_names_and_arguments_are_cupys(standin):
    """NCCL can be loaded without a GPU."""
    program = TELL.replace("METHODS", repr(METHODS))
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=LIMIT)
    numbers, methods, error = json.loads(told.stdout)
    if numbers is None:
        pytest.skip("CuPy finds no NCCL: pip install nvidia-nccl-cu12")
    nccl = standin.cuda.nccl
    assert {name: getattr(nccl, name) for name in numbers} == numbers
    assert str(nccl.NcclError(5)) == error
    for name in METHODS:
        theirs = re.match(r"NcclCommunicator\.\w+\((.*)\)", methods[name].splitlines()[0])[1]
        ours = inspect.signature(getattr(nccl.NcclCommunicator, name)).parameters
        assert list(ours) == [argument.split()[-1] for argument in theirs.split(", ")], name


def alone(world, call: str) -> str:
    """Run a program with a communicator of one rank, a stream and arrays; return the error."""
    import cupy as cp

    nccl = cp.cuda.nccl
    comm, stream = nccl.NcclCommunicator(1, nccl.get_unique_id(), 0), cp.cuda.Stream(non_blocking=True)
    x, y, host = cp.asarray(np.arange(8.0)), cp.empty(8), np.zeros(8)
    stream.wait_event(cp.cuda.Stream.null.record())
    names = {"cp": cp, "nccl": nccl, "comm": comm, "stream": stream, "x": x, "y": y, "host": host, "world": world}
    try:
        exec(call, names)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "none"


CALL = "comm.allReduce({}, 8, nccl.NCCL_FLOAT64, nccl.NCCL_SUM, stream.ptr)"
GOOD = CALL.format("x.data.ptr, y.data.ptr")
WAIT = "; cp.cuda.Stream.null.wait_event(stream.record())"


@pytest.mark.parametrize(
    ("call", "error"),
    [
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
        ("cp.cuda.set_device_count(2); cp.cuda.Device(1).use(); x + 1", "ValueError: Array device must be same"),
        ("cp.cuda.set_device_count(2); cp.cuda.Device(1).use(); x.get()", "none"),
        (
            "cp.cuda.set_device_count(2); cp.cuda.Device(1).use(); stream.use()",
            "RuntimeError: The device that the stream",
        ),
    ],
)
def test_what_a_gpu_would_do_wrong_raises(device_ranks, call, error):
    found = device_ranks(1).run(with_gpus, 1, alone, call)[0]
    assert re.match(error, found), found


def shared(world) -> str:
    """All ranks on GPU 0."""
    import cupy as cp

    nccl = cp.cuda.nccl
    cp.cuda.Device(0).use()
    unique_id = np.zeros(128, np.uint8)
    if world.rank == 0:
        unique_id[:] = np.frombuffer(nccl.get_unique_id(), np.uint8)
    md.broadcast(unique_id, 0, world)
    try:
        nccl.NcclCommunicator(world.size, unique_id.tobytes(), world.rank)
    except nccl.NcclError as error:
        return f"{error.status} {error}"
    return ""


def test_two_ranks_on_one_device_are_refused(device_ranks):
    for found in device_ranks(2).run(with_gpus, 2, shared):
        assert found.startswith("5 NCCL_ERROR_INVALID_USAGE") and "Duplicate GPU detected" in found


def hangs(world) -> str:
    """What the library does not compare: the second call of a kind on one rank, another on the other."""
    x = xp.asarray(np.ones(4))
    md.all_reduce(x, group=world)
    md.broadcast(x, 0, world)
    md.all_reduce(x, group=world) if world.rank == 0 else md.broadcast(x, 0, world)
    try:
        x.get()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_what_hangs_on_a_gpu_is_told(device_ranks):
    with pytest.raises(md.RankFailed, match="HangsOnAGPU"):
        device_ranks(2).run(with_gpus, 2, hangs)
