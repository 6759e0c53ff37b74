"""The one switch between NumPy and CuPy.

Every file that computes imports ``xp`` from here and uses it as NumPy. ``use("cupy")`` makes the same lines run on a
GPU. No other file imports CuPy. Two have separate code for it: nn/cublaslt.py multiplies, and nn/kernels.py adds in an
order of its own and has fused kernels. comm/nccl uses its streams. Other files ask at most where an array is
(``on_host``), or whether products take 16-bit codes (``kernels.multiplies_codes``).
"""

import ctypes
import hashlib
import os
import socket
import sys
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

BACKENDS = ("numpy", "cupy")
OLDEST = 14  # version of CuPy
# Read when the first product is computed. cuBLAS promises the same bits in every run only on one stream, or with
# workspaces of a fixed size on several ("Results reproducibility" in its documentation). TF32 would round float32 to
# 11 bits: CUPY_TF32 is for CuPy's own ``@``, while nn/cublaslt.py asks for float32 itself.
REPRODUCIBLE = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "CUPY_TF32": "0"}


class ArrayModule:
    """NumPy or CuPy behind one name. Each attribute is looked up once and then cached."""

    name: str
    module: ModuleType

    def __init__(self) -> None:
        self.__dict__.update(name="numpy", module=np)

    def __reduce__(self):
        return _own_xp, ()  # a function that is sent to a rank uses the rank's own

    def __getattr__(self, attribute: str):
        value = getattr(self.module, attribute)
        self.__dict__[attribute] = value
        return value


xp = ArrayModule()


def _own_xp() -> ArrayModule:
    return xp


def find(name: str) -> ModuleType:
    """Return the array module with that name, "numpy" or "cupy".

    Raises:
        ValueError: for any other name.
        RuntimeError: if CuPy or a GPU is missing; the message says how to fix it.
    """
    if name == "numpy":
        return np
    if name != "cupy":
        raise ValueError(f"unknown backend {name!r}: choose numpy or cupy")
    os.environ |= REPRODUCIBLE
    try:
        import cupy
    except ImportError as error:
        raise RuntimeError(
            f"--backend cupy needs CuPy ({error}). Install cupy-cuda12x or cupy-cuda13x, for the CUDA version that "
            "nvidia-smi shows, or leave --backend at numpy"
        ) from None
    if int(cupy.__version__.partition(".")[0]) < OLDEST:
        raise RuntimeError(
            f"--backend cupy needs CuPy {OLDEST} or later, but got {cupy.__version__}: update it with pip"
        )
    # Sums are left to CuPy's own kernel (nn/kernels.py says why). CUPY_ACCELERATORS would do the same, but only if it
    # is set before CuPy is first imported.
    cupy._core.set_reduction_accelerators([])
    cupy._core.set_routine_accelerators([])
    try:
        cupy.cuda.runtime.getDeviceCount()
    except Exception as error:
        raise RuntimeError(
            "--backend cupy needs an NVIDIA GPU, and CuPy finds none that it can use "
            f"({type(error).__name__}: {error}). Does nvidia-smi show one, and the CUDA version that CuPy is for? "
            "Or leave --backend at numpy"
        ) from None
    try:
        _ = cupy.cuda.cublas  # loads cuBLAS, which CuPy would do at the first product
    except ImportError as error:
        raise RuntimeError(
            f"CuPy {cupy.__version__} finds a GPU, but cannot load NVIDIA's libraries ({error}). Where no CUDA toolkit "
            "is installed, pip install 'cupy-cuda12x[ctk]' brings them, or cupy-cuda13x[ctk]"
        ) from None
    return cupy


def use(name: str, local_rank: int = 0) -> None:
    """Bind ``xp`` to "numpy" or "cupy" in this process, before any model is built.

    With CuPy, rank r of a node uses its GPU r, modulo their number, and CUDA's null stream.

    Raises:
        RuntimeError: if CuPy computes on another stream. Further errors as for ``find``.
    """
    module = find(name)
    if xp.name == "cupy":  # what an earlier run has left goes back to the GPU, which other ranks may share
        xp.module.get_default_memory_pool().free_all_blocks()
    if name == "cupy":
        if module.cuda.get_current_stream().ptr:
            raise RuntimeError(
                "the threads of a rank run their work in order only on CUDA's null stream: call use() outside of any "
                "`with stream:`, and without CUPY_CUDA_PER_THREAD_DEFAULT_STREAM in the environment"
            )
        module.cuda.Device(local_rank % module.cuda.runtime.getDeviceCount()).use()
    xp.__dict__.clear()
    xp.__dict__.update(name=name, module=module)


def gpu_name() -> str | None:
    """Return a name of this process's GPU that no other GPU has, from its host and PCI address; None with NumPy."""
    if xp.name == "numpy":
        return None
    file = Path("/proc/sys/kernel/random/boot_id")  # of the machine: containers may have the same host name
    boot = file.read_text("utf-8").strip() if file.exists() else ""
    return f"{socket.gethostname()} {boot} {xp.cuda.Device().pci_bus_id}"


def versions(name: str) -> dict[str, str]:
    """Return the versions that may change the bits of a run on that backend. Errors: see ``find``."""
    module = find(name)
    found = {"numpy": np.__version__}
    if name == "numpy":
        found["bits of its products"] = bits_of_products()
    else:
        # Without a handle, as in jaxlib/cuda/versions_helpers.cc: a handle would start CUDA only to ask for a version
        cublas = module.cuda.cublas.getVersion(0)
        found |= {"cupy": module.__version__, "cuBLAS": str(cublas), "GPU": gpu_model(module)}
    return found


@cache  # each save of a checkpoint asks
def bits_of_products() -> str:
    """Return a short digest of float32 products and functions, which tells one processor's BLAS from another's."""
    numbers = (np.arange(1 << 14, dtype=np.int64) * 7919 % 16411 / np.float32(8192) - 1).astype(np.float32)
    found = [numbers.reshape(-1, columns) @ numbers.reshape(columns, -1) for columns in (16, 64, 256)]
    found += [function(numbers) for function in (np.exp, np.tanh)]
    return hashlib.sha256(b"".join(array.tobytes() for array in found)).hexdigest()[:8]


def gpu_model(module: ModuleType) -> str:
    """Return the model of the calling thread's GPU, such as ``NVIDIA H100 80GB HBM3``; "" with NumPy."""
    if module is np:
        return ""
    return module.cuda.runtime.getDeviceProperties(module.cuda.Device().id)["name"].decode()


def nccl() -> ModuleType | None:
    """Return ``cupy.cuda.nccl``; None with NumPy, or without NCCL: CuPy then warns, and says how to install it.

    CuPy does not import it by itself.
    """
    if xp.name == "numpy":
        return None
    from cupy.cuda import nccl

    return nccl if nccl.available else None


def current_gpu():
    """Return the GPU of the calling thread (a ``cupy.cuda.Device``); None with NumPy."""
    return None if xp.name == "numpy" else xp.cuda.Device()


def use_gpu(device) -> None:
    """Let the calling thread use a GPU, unless ``device`` is None: every thread begins with GPU 0."""
    if device is not None:
        device.use()


def on_host(array) -> bool:
    """Return whether the array is in host memory. Reading from a GPU makes the host wait for all work queued there."""
    return isinstance(array, np.ndarray)


def cache_blocks(size: int, each: int) -> list[slice]:
    """Return slices that cover ``size`` items: at most ``each`` in one, to fit a CPU's cache; a single one on a GPU."""
    if size <= each or xp.name != "numpy":
        return [slice(0, size)]
    return list(map(slice, range(0, size, each), (*range(each, size, each), size)))


def to_host(array) -> np.ndarray:
    """Return the array in host memory: itself if it is NumPy's, a copy if it is on a GPU."""
    return array if isinstance(array, np.ndarray) else array.get()


def from_host(array: np.ndarray):
    """Return the array on the device of ``xp``: itself for NumPy, a copy on the GPU for CuPy."""
    return xp.asarray(array)


def copy_from_host(target, array: np.ndarray) -> None:
    """Overwrite ``target``, on whichever device, with an array of the same shape in host memory."""
    if isinstance(target, np.ndarray):
        target[...] = array
    else:
        # A background thread begins on GPU 0. It stays here: to go back would start CUDA there (cudaSetDevice, since
        # CUDA 12), which takes half a gigabyte of that GPU for every rank.
        target.device.use()
        target[...] = from_host(array)  # ``target.set(array)`` may still read the host's memory when it returns


def address(array) -> int:
    """Return the memory address of the array's first element."""
    return array.__array_interface__["data"][0] if isinstance(array, np.ndarray) else array.data.ptr


def read_only(array):
    """Make a NumPy array read-only, and return it. CuPy has no read-only arrays."""
    if isinstance(array, np.ndarray):
        array.flags.writeable = False
    return array


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # glibc's <malloc.h>


def keep_freed_memory() -> None:
    """Tell the C library not to return freed arrays to the kernel; without effect where it is not glibc.

    A step frees all its activations, and the next one takes as many again. By default glibc hands large blocks back,
    and the kernel must then clear and map every page anew, which was an eighth of a step's time. On GPUs frameworks
    keep memory for the same reason: PyTorch's caching allocator.
    """
    if sys.platform == "linux":
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None:
            mallopt(M_TRIM_THRESHOLD, 1 << 30)
            mallopt(M_MMAP_THRESHOLD, 1 << 30)
