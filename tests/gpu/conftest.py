"""The stand-in for CuPy: in this process for one test, and in ranks of its own."""

import importlib
import shutil
import sys
from pathlib import Path

import pytest

from minidist import backend
from minidist.comm.runtime.clusters import WarmClusters

STANDIN = Path(__file__).parent / "standin"


@pytest.fixture(scope="session")
def compiler() -> str:
    """Return the compiler of the stand-in's kernels."""
    return next(filter(None, map(shutil.which, ("c++", "g++", "clang++"))), None) or pytest.skip(
        "no C++ compiler is here: the stand-in for CuPy cannot run the library's kernels"
    )


@pytest.fixture
def standin(monkeypatch):
    """The stand-in, importable as ``cupy``, with nothing counted yet; forgotten after the test."""

    def forget():
        for name in [name for name in sys.modules if name.split(".")[0] in ("cupy", "cupyx")]:  # the real one's, too
            del sys.modules[name]

    forget()
    monkeypatch.syspath_prepend(STANDIN)
    yield importlib.import_module("cupy")
    backend.use("numpy")  # whatever the test has used
    forget()


@pytest.fixture
def device():
    """CuPy or the stand-in, with this process computing on GPU 0, and afterwards on the host again."""
    backend.use("cupy")
    yield backend.xp.module
    backend.use("numpy")


@pytest.fixture(scope="session")
def warm_device_ranks(ranks, compiler):
    with WarmClusters(type(ranks(1))) as clusters:  # with the same limits
        yield clusters


@pytest.fixture
def device_ranks(warm_device_ranks, monkeypatch):
    """``device_ranks(n)`` is a warm Cluster of n ranks, in which ``cupy`` is the stand-in."""
    monkeypatch.syspath_prepend(STANDIN)  # ranks take over the path of the process that runs a function on them
    return warm_device_ranks
