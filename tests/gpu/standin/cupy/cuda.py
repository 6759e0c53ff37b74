"""The part of ``cupy.cuda`` that a program without kernels of its own needs: one device, and cuBLAS for it."""

from types import SimpleNamespace

from cupy import cublas
from cupy.arrays import Device
from cupy.cublas import CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F, CUDA_R_64F, get_cublas_handle


class MemoryPool:
    """Keeps nothing: there is no memory."""

    def free_all_blocks(self) -> None:
        pass

    def used_bytes(self) -> int:
        return 0

    total_bytes = used_bytes


runtime = SimpleNamespace(
    getDeviceCount=lambda: 1,
    CUDA_R_16BF=CUDA_R_16BF, CUDA_R_16F=CUDA_R_16F, CUDA_R_32F=CUDA_R_32F, CUDA_R_64F=CUDA_R_64F,
)  # fmt: skip

__all__ = ["Device", "cublas", "get_cublas_handle", "runtime"]
