"""minidist: distributed training of transformers, for real, on a laptop; all layouts match bit for bit.

The names below come from minidist.comm, at their first use. So the command line starts at once, and answers Ctrl-C
with a sentence while it still loads NumPy.
"""

# ruff: noqa: F403, F405

from importlib import import_module
from typing import TYPE_CHECKING

from minidist import one_thread  # noqa: F401  before anything loads NumPy

if TYPE_CHECKING:  # what editors and type checkers read
    from minidist import backend
    from minidist.comm import *

__version__ = "0.1.0"

__all__ = [
    "Cluster",
    "Deadlock",
    "DeviceMesh",
    "Hang",
    "Mismatch",
    "P2POp",
    "ProcessGroup",
    "RankFailed",
    "ReduceOp",
    "Work",
    "all_gather_into_tensor",
    "all_reduce",
    "all_to_all_single",
    "backend",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "find_gpus",
    "gather",
    "init",
    "init_device_mesh",
    "irecv",
    "isend",
    "launch",
    "place_on_nodes",
    "recv",
    "reduce",
    "reduce_scatter_tensor",
    "scatter",
    "send",
    "sendrecv",
    "wait_any",
]


def __getattr__(name: str):
    if name == "backend":
        return import_module("minidist.backend")
    if name in __all__:
        globals()[name] = found = getattr(import_module("minidist.comm"), name)  # later uses find it without this call
        return found
    raise AttributeError(f"module 'minidist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
