"""How much of what the hardware can do a run made use of.

Model FLOPs utilization (MFU) counts what the model's forward and backward need, whatever the run computes beside that,
and divides it by what the hardware could have computed in the same time. Hardware FLOPs utilization (HFU) also counts
what is computed again (Chowdhery et al., "PaLM", 2022, appendix B; Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022, which reports both). Only matrix products count.

The FLOPs here are counted as the run takes them (flops.py). PaLM's closed form is an estimate of the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.analysis import breakdown

NO_CORE = "waiting for a core"
KINDS = ("products", "elementwise", "optimizer", "data", "communication", "waiting", NO_CORE, "rest")


@dataclass(frozen=True)
class Utilization:
    """What one rank, or all ranks of a run together, computed in some seconds."""

    seconds: float  # of the steps, without what is between them: checkpoints, checks
    model_flops: int  # of forward and backward. A step that was skipped because float16 overflowed counts too
    hardware_flops: int  # also those of recomputation
    peak: float  # FLOP/s that could have been (train/measuring/evaluate.py); 0 if nobody has measured it

    @classmethod
    def of_rank(cls, step_seconds: Sequence[float], flops: dict[str, int], peak: float) -> "Utilization":
        """That of one rank: the time of each step, and FLOPs of all these steps by phase (flops.py)."""
        hardware = sum(flops.values())
        return cls(sum(step_seconds), hardware - flops.get("recompute", 0), hardware, peak)

    @classmethod
    def of_run(cls, ranks: Sequence["Utilization"]) -> "Utilization":
        """That of all ranks together, which take as long as the slowest."""
        return cls(
            max(rank.seconds for rank in ranks),
            sum(rank.model_flops for rank in ranks),
            sum(rank.hardware_flops for rank in ranks),
            sum(rank.peak for rank in ranks),
        )

    @property
    def speed(self) -> float:
        """Model FLOP/s; 0 where no step was taken."""
        return self.model_flops / self.seconds if self.seconds else 0.0

    @property
    def mfu(self) -> float:
        return self._share(self.model_flops)

    @property
    def hfu(self) -> float:
        return self._share(self.hardware_flops)

    def _share(self, flops: int) -> float:
        possible = self.seconds * self.peak
        return flops / possible if possible else 0.0

    def as_dict(self) -> dict:
        """What ``--json`` writes."""
        return {
            "seconds": self.seconds,
            "model_flops": self.model_flops,
            "hardware_flops": self.hardware_flops,
            "model_flops_per_second": self.speed,
            "peak_flops_per_second": self.peak,
            "mfu": self.mfu,
            "hfu": self.hfu,
        }


def palm_flops_per_token(parameters: int, layers: int, width: int, context: int) -> int:
    """PaLM's estimate of a token's model FLOPs: 6 N + 12 L H Q T, where H Q is the width (appendix B).

    Every parameter takes a multiplication and an addition in forward, and twice that in backward. In each layer, so do
    the scores of a token against all of its context, and the sum of the values that they weight. Masked scores count.
    """
    return 6 * parameters + 12 * layers * width * context


def shares_of_time(logs: Sequence[list], seconds_without_core: Sequence[Sequence[float]]) -> list[dict[str, float]]:
    """Where each rank's time went in the traced steps: the share of each of KINDS. They add up to 1.

    While a rank computes it may have to wait for a core of the machine. In which operation it did so nobody has noted,
    so that time is taken from all kinds of computing, in proportion.

    Args:
        logs: each rank's log, as for ``breakdown.seconds_by_kind``.
        seconds_without_core: each rank's time without a core, by step; the last steps are those in the logs.
    """
    return [
        shares(steps, sum(without_core[len(without_core) - len(steps) :]))
        for steps, without_core in zip(breakdown.seconds_by_kind(logs), seconds_without_core, strict=True)
    ]


def shares(steps: Sequence[dict[str, float]], without_core: float) -> dict[str, float]:
    """The share of each kind in the time of some steps of one rank, in which it computed nothing for lack of a core."""
    seconds = {kind: sum(step[kind] for step in steps) for kind in breakdown.KINDS}
    computing = sum(seconds[kind] for kind in breakdown.COMPUTE)
    # Below 0 where waits for others were taken to have had no core for a little longer than they had none (count_wait).
    seconds[NO_CORE] = min(max(without_core, 0.0), computing)
    for kind in breakdown.COMPUTE:
        seconds[kind] *= 1 - seconds[NO_CORE] / computing if computing else 1
    whole = sum(seconds.values())
    return {kind: seconds[kind] / whole if whole else 0.0 for kind in KINDS}
