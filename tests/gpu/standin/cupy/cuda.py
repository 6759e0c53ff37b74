"""The part of ``cupy.cuda`` that the library needs: devices, streams, events, cuBLAS and NCCL."""

from types import SimpleNamespace

from cupy.device import cublas, nccl
from cupy.device.cublas import CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F, CUDA_R_64F, get_cublas_handle
from cupy.device.devices import Device, device_count, set_device_count
from cupy.device.streams import Event, Stream, get_current_stream


class MemoryPool:
    """Keeps nothing: there is no memory."""

    def free_all_blocks(self) -> None:
        pass

    def used_bytes(self) -> int:
        return 0

    total_bytes = used_bytes


runtime = SimpleNamespace(
    getDeviceCount=device_count, getDeviceProperties=lambda device: {"name": b"stand-in"},
    CUDA_R_16BF=CUDA_R_16BF, CUDA_R_16F=CUDA_R_16F, CUDA_R_32F=CUDA_R_32F, CUDA_R_64F=CUDA_R_64F,
)  # fmt: skip

__all__ = [
    "Device", "Event", "Stream", "cublas", "get_cublas_handle", "get_current_stream", "nccl", "runtime",
    "set_device_count",
]  # fmt: skip
