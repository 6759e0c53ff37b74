"""The devices of a machine that does not exist, and which of them is the current one in each thread."""

import threading

from cupy.traffic import crossing

_thread = threading.local()
_count = 1


def set_device_count(count: int) -> None:
    """Set how many devices there are from now on in this process. Not in CuPy: tests call it."""
    global _count
    _count = count


def device_count() -> int:
    return _count


def current_device() -> int:
    """Every thread begins with device 0."""
    return getattr(_thread, "device", 0)


class Device:
    """``with Device(1):`` makes a device the current one."""

    def __init__(self, device: int | None = None) -> None:
        self.id = current_device() if device is None else device

    def __eq__(self, other) -> bool:
        return isinstance(other, Device) and self.id == other.id

    def use(self) -> "Device":
        if not 0 <= self.id < _count:
            raise RuntimeError(f"cudaErrorInvalidDevice: invalid device ordinal {self.id} of {_count}")
        _thread.device = self.id
        return self

    @property
    def pci_bus_id(self) -> str:
        return f"0000:{self.id + 1:02x}:00.0"

    def synchronize(self) -> None:
        crossing("size")

    def __enter__(self) -> "Device":
        self._before = [*getattr(self, "_before", []), current_device()]
        return self.use()

    def __exit__(self, *_) -> None:
        _thread.device = self._before.pop()
