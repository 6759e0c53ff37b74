"""What a program makes the host and the device do to each other, and which of its lines asked for it."""

import sys
from collections import Counter

BETWEEN = tuple(f"minidist.{name}" for name in ("backend", "nn.kernels", "nn.cublaslt", "nn.precision.policy"))
# (kind, "module.function") -> how often. Kinds: "to device" and "to host" copy arrays; "scalar" copies one number to
# the host and waits for it; "size" makes the host wait for the shape of a result. The last three stop the host.
crossings: Counter[tuple[str, str]] = Counter()
# (type of the factors, "module.function") -> how many products of matrices
products: Counter[tuple[str, str]] = Counter()
# (operation, "module.function") -> how many kernels were started; a view of an array needs none
launches: Counter[tuple[str, str]] = Counter()


def product(kind: str) -> None:
    products[kind, _caller()] += 1
    launched("product")


def launched(operation: str) -> None:
    launches[operation, _caller()] += 1


def crossing(kind: str) -> None:
    crossings[kind, _caller()] += 1


def _caller() -> str:
    """The innermost function of minidist that is being run, but for the files that stand between it and CuPy."""
    frame = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("minidist.") and name not in BETWEEN:
            return f"{name.removeprefix('minidist.')}.{frame.f_code.co_name}"
        frame = frame.f_back
    return "outside"
