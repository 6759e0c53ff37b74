"""The one switch between NumPy and CuPy.

Every file that computes says ``from minidist.backend import xp`` and then writes NumPy. ``use("cupy")`` makes the
same lines run on a GPU. This is the only file that imports CuPy, and the only one that asks which of the two it is.

It also pins the BLAS to one thread, before NumPy loads it: a rank stands for one device, so it gets one core, and a
product that is split over several threads may change its bits with the number of threads.
"""

import os
import sys
from types import ModuleType

for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "VECLIB_MAXIMUM_THREADS"):
    os.environ[_name] = "1"  # the ranks, being children, inherit it
_numpy_came_first = "numpy" in sys.modules

import numpy as np  # noqa: E402

if _numpy_came_first:  # a notebook, say: its BLAS has read the environment already, so tell the loaded library itself
    from threadpoolctl import threadpool_limits

    threadpool_limits(limits=1, user_api="blas")


class ArrayModule:
    """NumPy or CuPy behind one name; each attribute is looked up once and then kept."""

    name: str
    module: ModuleType

    def __init__(self) -> None:
        self.__dict__.update(name="numpy", module=np)

    def __reduce__(self):
        return _own_xp, ()  # a function that is sent to a rank computes with the rank's own

    def __getattr__(self, attribute: str):
        value = getattr(self.module, attribute)
        self.__dict__[attribute] = value
        return value


xp = ArrayModule()


def _own_xp() -> ArrayModule:
    return xp


def find(name: str) -> ModuleType:
    """The array module of that name, "numpy" or "cupy".

    Raises:
        ValueError: for another name.
        RuntimeError: when CuPy or a GPU is missing, with the way to mend it.
    """
    if name == "numpy":
        return np
    if name != "cupy":
        raise ValueError(f"unknown backend {name!r}: choose numpy or cupy")
    try:
        import cupy

        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise RuntimeError(
            f"--backend cupy needs CuPy and an NVIDIA GPU ({type(error).__name__}: {error}). "
            "Install it with: pip install 'minidist[cupy]', or leave --backend at numpy."
        ) from None
    return cupy


def use(name: str, rank: int = 0) -> None:
    """Bind ``xp`` to "numpy" or "cupy" in this process, before any model is built; see ``find``.

    With CuPy, rank r takes the r-th GPU, beginning again where there are more ranks than GPUs.
    """
    module = find(name)
    if name == "cupy":
        module.cuda.Device(rank % module.cuda.runtime.getDeviceCount()).use()
    xp.__dict__.clear()
    xp.__dict__.update(name=name, module=module)


def to_host(array) -> np.ndarray:
    """The array in host memory: itself if it is NumPy's, a copy if it lies on a GPU."""
    return array if isinstance(array, np.ndarray) else array.get()


def from_host(array: np.ndarray):
    """The array where ``xp`` computes: itself for NumPy, a copy on the GPU for CuPy."""
    return xp.asarray(array)


def copy_from_host(target, array: np.ndarray) -> None:
    """Overwrite ``target`` where it lies with an array of the same shape in host memory."""
    if isinstance(target, np.ndarray):
        target[...] = array
    else:
        with target.device:  # a background thread has a current device of its own
            target.set(array)


def address(array) -> int:
    """Where in memory the array's first element lies."""
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr


def read_only(array):
    """The array, which now refuses to be written to; CuPy's cannot refuse."""
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array


def add_at(target, index, values) -> None:
    """``target[index] += values`` where an index may occur more than once (``np.add.at``), along the first axis."""
    xp.add.at(target, index, values)
