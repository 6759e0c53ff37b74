"""The part of ``cupy.cuda`` that the library needs: devices, streams, events, and NCCL."""

from types import SimpleNamespace

from cupy import nccl
from cupy.devices import Device, device_count, set_device_count
from cupy.streams import Event, Stream, get_current_stream

runtime = SimpleNamespace(getDeviceCount=device_count)

__all__ = ["Device", "Event", "Stream", "get_current_stream", "nccl", "runtime", "set_device_count"]
