"""A transformer and how one process trains it; knows nothing of ranks."""

import ctypes
import sys

import minidist.nn.arithmetic  # noqa: F401 (gives Tensor its operators)
from minidist.nn.measuring import Measuring
from minidist.nn.modes import stand

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


keep_freed_memory()
stand(Measuring())
