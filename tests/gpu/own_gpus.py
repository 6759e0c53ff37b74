"""Ranks that have GPUs, on the stand-in: how many there are is said within the rank."""

from collections.abc import Callable

import minidist as md


def with_gpus(world, count: int, function: Callable, *arguments):
    """``function(world, *arguments)`` in a rank whose ``cupy`` is the stand-in, with so many GPUs in the machine."""
    import cupy

    cupy.cuda.set_device_count(count)
    try:
        md.backend.use("cupy", world.local_rank)
        md.find_gpus(world)
        return function(world, *arguments)
    finally:
        cupy.cuda.set_device_count(1)  # the rank goes on with other tests
