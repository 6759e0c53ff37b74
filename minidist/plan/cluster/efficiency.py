"""Shares of the peak that real kernels and collectives reach: data (efficiency.toml), one curve for each chip.

A plan has no further factor: it does not model any loss of a training run beyond these curves.
"""

from bisect import bisect
from dataclasses import dataclass
from functools import cache
from math import log
from pathlib import Path

from minidist.plan.cluster.hardware import Accelerator, load
from minidist.plan.cluster.toml_tables import from_table, read_toml

DATA = Path(__file__).with_suffix(".toml")
NEAREST = {"a100-40": "a100", "h100-pcie": "h100", "b200": "gb200"}  # chips without measurements of their own
LATEST = "h100"  # for an unknown chip, such as one from your own file
ATTENTION = ("standard", "flash")


@dataclass(frozen=True)
class Efficiency:
    """Shares of the peak, each above 0. See efficiency.toml.

    Attributes:
        attention: "standard" writes the scores of all pairs of tokens to memory; "flash" does not.
        products: pairs of FLOPs and share, by FLOPs.
        inside: pairs of bytes and share, by bytes.
    """

    attention: str
    products: list[list[float]]
    memory: float
    flash_forward: float
    flash_backward: float
    inside: list[list[float]]
    between: float
    source: str

    def __post_init__(self) -> None:
        if self.attention not in ATTENTION:
            raise ValueError(f"attention must be one of {', '.join(ATTENTION)}, got {self.attention!r}")
        for curve in (self.products, self.inside):
            if not curve or any(len(point) != 2 or not all(point) for point in curve) or curve != sorted(curve):
                raise ValueError(f"a curve needs pairs of positive numbers in ascending order, got {curve}")

    def of_product(self, flops: float) -> float:
        """Share of the peak FLOP/s that one matrix product reaches."""
        return interpolate(self.products, flops)

    def of_collective(self, nbytes: float) -> float:
        """Share of a link's bandwidth that a collective of ``nbytes`` reaches inside a node."""
        return interpolate(self.inside, nbytes)


PERFECT = Efficiency("standard", [[1.0, 1.0]], 1.0, 1.0, 1.0, [[1.0, 1.0]], 1.0, "no losses at all")


def interpolate(curve: list[list[float]], x: float) -> float:
    """Interpolate a curve of points (x, y) linearly over log x.

    Below the first point y is proportional to x, because a small kernel takes as long as the smallest measured one.
    Above the last point, and if it is the only one, the curve is constant.
    """
    place = bisect(curve, [x])
    if place == len(curve) or len(curve) == 1:
        return curve[-1][1]
    if place == 0:
        return curve[0][1] * x / curve[0][0]
    (left, low), (right, high) = curve[place - 1], curve[place]
    return low + (high - low) * log(x / left) / log(right / left)


@cache
def measured() -> dict[str, Efficiency]:
    """Return the efficiencies of efficiency.toml, by chip."""
    return {name: from_table(Efficiency, table, f"{DATA}: [{name}]") for name, table in read_toml(DATA).items()}


def efficiency_of(accelerator: Accelerator) -> Efficiency:
    """Return the efficiency of a chip, or of the nearest chip that was measured."""
    name = next((key for key, known in load().accelerators.items() if known == accelerator), LATEST)
    return measured()[name if name in measured() else NEAREST.get(name, LATEST)]
