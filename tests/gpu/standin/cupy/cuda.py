"""The part of ``cupy.cuda`` that the library needs: devices, streams, events, cuBLAS and NCCL."""

from functools import partial
from types import SimpleNamespace

from cupy.device import cublas, nccl
from cupy.device.devices import Device, device_count, set_device_count
from cupy.device.streams import Event, Stream, get_current_stream


def core() -> SimpleNamespace:
    """``cupy._core``: the libraries that CuPy adds with, of both kinds, as it begins with them: CUB."""
    found = {"reduction": [1], "routine": [1]}
    ways = {"get": found.get, "set": found.__setitem__}
    return SimpleNamespace(**{f"{k}_{kind}_accelerators": partial(ways[k], kind) for k in ways for kind in found})


runtime = SimpleNamespace(
    getDeviceCount=device_count, getDeviceProperties=lambda device: {"name": b"stand-in"},
)  # fmt: skip

__all__ = [
    "Device", "Event", "Stream", "cublas", "get_current_stream", "nccl", "runtime",
    "set_device_count",
]  # fmt: skip
