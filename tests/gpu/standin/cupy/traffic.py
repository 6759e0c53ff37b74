"""What a program makes the host and the device do to each other, and which of its lines asked for it."""

import sys
from collections import Counter
from math import prod
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
# (kind, "module.function") -> how often. Kinds: "to device" and "to host" copy arrays; "scalar" copies one number to
# the host and waits for it; "size" makes the host wait for the shape of a result. The last three stop the host.
crossings: Counter[tuple[str, str]] = Counter()
# (operation, "module.function") -> how many kernels it started, and how many bytes they read and wrote. What returns a
# view of its argument starts none.
launches: Counter[tuple[str, str]] = Counter()
traffic: Counter[tuple[str, str]] = Counter()


def crossing(kind: str) -> None:
    crossings[kind, _caller()] += 1


def launch(operation: str, read, written) -> None:
    """A kernel was started, on lists of NumPy's arrays. A stride of 0 repeats what is read once."""
    key = operation, _caller()
    launches[key] += 1
    traffic[key] += sum(_bytes(array) for array in read) + sum(array.nbytes for array in written)


def _bytes(array: np.ndarray) -> int:
    lengths = (length for length, stride in zip(array.shape, array.strides, strict=True) if stride)
    return prod(lengths) * array.itemsize if array.size else 0


def _caller() -> str:
    """The innermost function of minidist that is being run, but for the file that stands between it and CuPy."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("minidist.") and name != "minidist.backend":
            return f"{name.removeprefix('minidist.')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "outside"
