"""The roofline: the highest speed at which work can run, from its arithmetic intensity, in FLOPs per byte moved.

A chip computes while it moves bytes between its memory and its cores. Whichever takes longer decides: below the ridge
point memory bandwidth, above it arithmetic (Williams, Waterman and Patterson, "Roofline: an insightful visual
performance model for multicore architectures", 2009). No kernel reaches its roof; efficiencies say which share it gets.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from math import inf, isfinite

from minidist.plan.cluster.hardware import Accelerator


@dataclass(frozen=True)
class Work:
    """What a kernel does: FLOPs, and bytes that it reads from memory and writes to it."""

    flops: float
    nbytes: float

    @property
    def intensity(self) -> float:
        """Arithmetic intensity: FLOPs per byte moved. Infinite for work that moves nothing."""
        return self.flops / self.nbytes if self.nbytes else inf

    def __add__(self, other: "Work") -> "Work":
        return Work(self.flops + other.flops, self.nbytes + other.nbytes)


def ridge_point(accelerator: Accelerator, precision: str) -> float:
    """The intensity at which memory and arithmetic take equally long: peak FLOP/s over bytes/s."""
    return peak_flops(accelerator, precision) / accelerator.memory_bandwidth


def attainable_flops(accelerator: Accelerator, precision: str, intensity: float) -> float:
    """The roof at one intensity, in FLOP/s."""
    return min(peak_flops(accelerator, precision), intensity * accelerator.memory_bandwidth)


def kernel_seconds(
    accelerator: Accelerator,
    flops: float,
    nbytes: float,
    precision: str,
    flops_efficiency: float = 1.0,
    memory_efficiency: float = 1.0,
) -> float:
    """Seconds of work that computes and moves bytes at the same time: the longer of the two.

    Args:
        nbytes: that cross the chip's memory bus, read and written.
        precision: a key of ``accelerator.flops``; any, where there are no FLOPs.
        flops_efficiency: the share of the peak FLOP/s that arithmetic reaches, above 0 and at most 1.
        memory_efficiency: the same of the memory bandwidth.

    Raises:
        ValueError: if the chip lacks the precision, or a number cannot be.
    """
    peak = peak_flops(accelerator, precision) if flops else inf  # what computes nothing needs no arithmetic
    for name, value in (("flops", flops), ("nbytes", nbytes)):
        if not (isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be 0 or more and finite, got {value:g}")
    for name, value in (("flops_efficiency", flops_efficiency), ("memory_efficiency", memory_efficiency)):
        if not 0 < value <= 1:
            raise ValueError(f"{name} must be above 0 and at most 1, got {value:g}")
    return max(flops / (peak * flops_efficiency), nbytes / (accelerator.memory_bandwidth * memory_efficiency))


def total_seconds(accelerator: Accelerator, kernels: Iterable[Work], precision: str, **efficiencies: float) -> float:
    """Seconds of kernels that run one after the other; see ``kernel_seconds``."""
    return sum(kernel_seconds(accelerator, work.flops, work.nbytes, precision, **efficiencies) for work in kernels)


def peak_flops(accelerator: Accelerator, precision: str) -> float:
    """Dense FLOP/s in a precision.

    Raises:
        ValueError: if the chip lacks it; names those that it has.
    """
    if precision not in accelerator.flops:
        raise ValueError(
            f"{accelerator.name} has no {precision} arithmetic: choose from {', '.join(accelerator.flops)}"
        )
    return accelerator.flops[precision]
