"""A run as if it had been on a cluster: ``as_if(logs, "h100:2x8")``."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.analysis.clock.replay import Replayed, replay
from minidist.plan.cluster.hardware import Accelerator, ClusterSpec
from minidist.plan.cluster.roofline import kernel_seconds
from minidist.plan.cluster.topologies import topology_of
from minidist.trace import Kernel

FLOPS_EFFICIENCY = 0.7
MEMORY_EFFICIENCY = 0.8


@dataclass(frozen=True)
class Pace:
    """How long kernels take: the longer of their arithmetic and their memory accesses, at a share of the peak rates.

    Args:
        flops_efficiency, memory_efficiency: those shares. The defaults are assumptions, for large kernels that are
            written well (FlashAttention-3 reaches up to 75 % of an H100's FLOP/s; Shah et al., 2024).
    """

    accelerator: Accelerator
    flops_efficiency: float = FLOPS_EFFICIENCY
    memory_efficiency: float = MEMORY_EFFICIENCY

    def seconds(self, kernel: Kernel) -> float:
        return kernel_seconds(
            self.accelerator, kernel.flops, kernel.nbytes, kernel.precision, self.flops_efficiency,
            self.memory_efficiency,
        )  # fmt: skip


def as_if(
    logs: Sequence[list],
    cluster: str | ClusterSpec,
    flops_efficiency: float = FLOPS_EFFICIENCY,
    memory_efficiency: float = MEMORY_EFFICIENCY,
) -> Replayed:
    """Replay a recorded run on a cluster's clock.

    Rank 0 is the first accelerator of the first node, and so on.

    Args:
        logs: for each rank what ``trace.stop()`` returned, or ``RankResult.log`` (``RunOptions(trace=True)``).
        cluster: such as ``h100:2x8``: see ``ClusterSpec.parse``.
        flops_efficiency, memory_efficiency: the shares of the accelerator's peak rates that kernels reach.

    Raises:
        ValueError: if the cluster is unknown, has another number of accelerators than there are ranks, or the
            accelerator cannot compute in the run's precision.
    """
    spec = ClusterSpec.parse(cluster) if isinstance(cluster, str) else cluster
    spec.check(len(logs))
    pace = Pace(spec.accelerator, flops_efficiency, memory_efficiency)
    return replay(logs, topology_of(spec), pace.seconds)
