"""How many floating-point operations a second a rank can reach here: what utilization (MFU) is measured against.

A GPU's data sheet says it. A CPU's says little: its clock falls under load, and cores share caches and memory. So it is
measured: matrix products of a size that suits the machine, in float32, on as many cores as the run has.
"""

import time

from minidist import backend
from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import barrier
from minidist.comm.runtime.patience import cores

SIZES = (256, 512, 1024)  # n of the products (n, n) @ (n, n); which is fastest depends on the machine
SECONDS = 0.2


def measured_peak(world: ProcessGroup, seconds: float = SECONDS) -> float:
    """This rank's peak in FLOP/s: the speed of a core while all ranks compute, times this rank's share of the cores.

    All ranks call it together, and compute for the whole time. A product's time is that of the rank's compute clock,
    which leaves out waiting for a core, so a busy machine disturbs little; of all products of all sizes the fastest
    counts. With more ranks than cores a rank's share is cores / ranks: the sum over all ranks is what the machine can
    do, and a rank that computes while others wait may exceed its own peak. On a GPU, which ranks may share, the time of
    a product is the time until it is done.

    Args:
        world: all ranks of the run, on one machine.
        seconds: for how long to measure.
    """
    clock = world.transport.clock
    arrays = {n: [xp.ones((n, n), xp.float32) for _ in range(3)] for n in SIZES}
    for a, b, product in arrays.values():  # the first product starts the library, and touches the memory
        xp.matmul(a, b, out=product)
        backend.to_host(product[:1, :1])
    barrier(world)
    best, began = 0.0, time.perf_counter()
    while time.perf_counter() - began < seconds or not best:
        for n, (a, b, product) in arrays.items():
            before = clock.seconds()
            xp.matmul(a, b, out=product)
            backend.to_host(product[:1, :1])  # a GPU has computed it by then
            best = max(best, 2 * n**3 / max(clock.seconds() - before, 1e-9))
    return best * share_of_cores(world.size, cores(), clock.sees_cores and xp.name == "numpy")


def share_of_cores(ranks: int, cores: int, sees_cores: bool) -> float:
    """The share of a core that each of so many busy ranks gets; 1 where the time of a product contains it already."""
    return min(1.0, cores / ranks) if sees_cores else 1.0
