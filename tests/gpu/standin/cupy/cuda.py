"""The part of ``cupy.cuda`` that a program without kernels of its own needs: one device."""

from types import SimpleNamespace

from cupy.arrays import Device


class MemoryPool:
    """Keeps nothing: there is no memory."""

    def free_all_blocks(self) -> None:
        pass

    def used_bytes(self) -> int:
        return 0

    total_bytes = used_bytes


runtime = SimpleNamespace(getDeviceCount=lambda: 1)

__all__ = ["Device", "runtime"]
