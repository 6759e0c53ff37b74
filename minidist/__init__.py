"""minidist: distributed training of transformers, for real, on a laptop; all layouts match bit for bit.

The names below are imported at their first use. So the command line starts at once, and answers Ctrl-C with a sentence
while it still loads NumPy. Editors and type checkers read __init__.pyi.

The BLAS is pinned to one thread before anything loads NumPy. A rank stands for one device, so it gets one core, and the
bits of a product may depend on the number of threads that compute it.
"""

# ruff: noqa: F822
# pyright: reportUnsupportedDunderAll=false

import os
import sys
from importlib import import_module

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[_name] = "1"  # ranks are child processes and inherit it

if "numpy" in sys.modules:  # in a notebook, say: the BLAS has read the environment already, so set the loaded library
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=1, user_api="blas")

__version__ = "0.1.0"

WHERE = {  # modules of the names that are not minidist.comm's
    "AdamW": "nn.optim.optimizers",
    "GPT": "nn.gpt",
    "GPTConfig": "nn.config",
    "Layout": "train.layout",
    "RunOptions": "train.result",
    "Tensor": "nn.tensor",
    "TrainConfig": "train.config",
    "agrees": "verify.comparison",
    "bits": "verify.comparison",
    "first_difference": "verify.comparison",
    "load_corpus": "nn.data",
    "no_grad": "nn.tensor",
    "run": "train.trainer",
    "train_rank": "train.trainer",
    "ulps_between": "verify.ulps",
}
__all__ = [
    *WHERE,
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
        module = import_module(f"minidist.{WHERE.get(name, 'comm')}")
        globals()[name] = found = getattr(module, name)  # later uses find it without this call
        return found
    raise AttributeError(f"module 'minidist' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
