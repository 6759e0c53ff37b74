"""How many floating-point operations a second a rank can reach here: what utilization (MFU) is measured against.

A GPU's data sheet says it. A CPU's says little: its clock falls under load, and cores share caches and memory. So it is
measured: matrix products of a size that suits the machine, on as many cores as the run has. They are in float32, and on
a GPU those of a 16-bit run are in the tensor cores, as the run's own are.
"""

import time
from collections.abc import Sequence

from minidist import backend
from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import barrier
from minidist.comm.runtime.patience import cores
from minidist.nn.precision.policy import current

SIZES = (256, 512, 1024)  # n of the products (n, n) @ (n, n); which is fastest depends on the machine
GPU_SIZES = (2048, 4096)  # of smaller ones a GPU computes many in the time that it takes to start one
SECONDS = 0.2


def measured_peak(world: ProcessGroup, seconds: float = SECONDS, sizes: Sequence[int] | None = None) -> float:
    """This rank's peak in FLOP/s: the speed of a core while all ranks compute, times this rank's share of the cores.

    All ranks call it together, and compute for the whole time. A product's time is that of the rank's compute clock,
    which leaves out waiting for a core where the system tells it. Of all products of all sizes the fastest counts, one
    that nobody interrupted. With more ranks than cores a rank's share is cores / ranks: the sum over all ranks is what
    the machine can do, and a rank that computes while others wait may exceed its own peak. On a GPU, which ranks may
    share, the time of a product is the time until it is done.

    Args:
        world: all ranks of the run, on one machine.
        seconds: for how long to measure; each size has one turn at least.
        sizes: n of the products (n, n) @ (n, n); None for those that fit the device.
    """
    clock, on_host = world.transport.clock, backend.on_host(xp.empty(0))
    policy = current()

    def factor(n: int):
        return policy.factor(xp.ones((1, n, n), xp.float32))

    sizes = sizes or (SIZES if on_host else GPU_SIZES)
    products = [(n, factor(n), factor(n), xp.empty((1, n, n), xp.float32)) for n in sizes]

    def multiply(a, b, product) -> None:
        policy.matmul(a, b, product)
        backend.to_host(product[:, :1, :1])  # a GPU has computed it by then

    for _, *arrays in products:  # the first product starts the library, and touches the memory
        multiply(*arrays)
    barrier(world)
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds or not best:
        for n, *arrays in products:
            before = clock.seconds()
            multiply(*arrays)
            best = max(best, 2 * n**3 / max(clock.seconds() - before, 1e-9))
    return best * (share_of_cores(world.size, cores()) if on_host else 1.0)


def share_of_cores(ranks: int, cores: int) -> float:
    """The share of a core that each of so many busy ranks gets."""
    return min(1.0, cores / ranks)
