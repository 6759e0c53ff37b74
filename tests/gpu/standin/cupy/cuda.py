"""The part of ``cupy.cuda`` that a program without kernels of its own needs: one device."""

from types import SimpleNamespace

from cupy.arrays import Device

runtime = SimpleNamespace(getDeviceCount=lambda: 1)

__all__ = ["Device", "runtime"]
