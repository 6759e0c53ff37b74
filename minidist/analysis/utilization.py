"""The share of the hardware's peak that a run made use of.

Model FLOPs utilization (MFU) counts what the model's forward and backward need, whatever else the run computes, and
divides it by what the hardware could have computed in the same time. Hardware FLOPs utilization (HFU) also counts
what is computed again (Chowdhery et al., "PaLM", 2022, appendix B; Korthikanti et al., "Reducing Activation
Recomputation in Large Transformer Models", 2022, which reports both). Only matrix products count.

The FLOPs here are counted as the run takes them (flops.py). PaLM's closed form is an estimate of the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Utilization:
    """The FLOPs that one rank, or all ranks of a run together, computed in a given time."""

    seconds: float  # of the steps, without what is between them: checkpoints, checks
    model_flops: int  # of forward and backward. A step that was skipped because float16 overflowed counts too
    hardware_flops: int  # also those of recomputation
    peak: float  # FLOP/s that the hardware can reach (train/measuring/evaluate.py); 0 if not measured

    @classmethod
    def of_rank(cls, step_seconds: Sequence[float], flops: dict[str, int], peak: float) -> "Utilization":
        """Return the utilization of one rank, from the time of each step and the FLOPs of all steps by phase."""
        hardware = sum(flops.values())
        return cls(sum(step_seconds), hardware - flops.get("recompute", 0), hardware, peak)

    @classmethod
    def of_run(cls, ranks: Sequence["Utilization"]) -> "Utilization":
        """Return the utilization of the whole run: it takes as long as its slowest rank."""
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
        """Return what ``--json`` writes."""
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
