"""The best size by isoFLOP curves: at one budget, several sizes; the lowest loss is where a parabola has its minimum.

This is "approach 2" of Hoffmann et al. (2022, arXiv 2203.15556, section 3.2). It assumes no law of the loss, only that
the loss over log N looks like a parabola near its minimum; then that the minima of several budgets lie on a power law.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from minidist.plan.scaling.laws import FLOPS_PER_PARAMETER, check


@dataclass(frozen=True)
class IsoFlop:
    """The parabola through the runs of one budget: loss = lowest + curvature (log N - log best)^2.

    Attributes:
        flops: the budget.
        parameters: of the minimum. lowest: its loss.
        sizes: the smallest and the largest that were trained.
    """

    flops: float
    parameters: float
    lowest: float
    curvature: float
    sizes: tuple[float, float]

    @property
    def tokens(self) -> float:
        return self.flops / FLOPS_PER_PARAMETER / self.parameters

    @property
    def is_inside(self) -> bool:
        """Whether the minimum is among the sizes that were trained; outside it is a guess."""
        return self.sizes[0] <= self.parameters <= self.sizes[1]

    def loss(self, parameters):
        """The parabola at these sizes."""
        return self.lowest + self.curvature * np.log(parameters / self.parameters) ** 2


def parabola(flops: float, parameters: Sequence[float], losses: Sequence[float]) -> IsoFlop:
    """The parabola of one budget, by least squares.

    Raises:
        ValueError: for fewer than 3 sizes, or losses without a minimum.
    """
    sizes, measured = np.asarray(parameters, float), np.asarray(losses, float)
    check(flops=flops, parameters=sizes, losses=measured)
    if len(np.unique(sizes)) < 3:
        raise ValueError(f"a parabola needs at least 3 sizes, got {len(np.unique(sizes))}")
    middle = np.log(sizes).mean()
    curvature, slope, constant = np.polyfit(np.log(sizes) - middle, measured, 2)
    if curvature <= 0:
        raise ValueError(f"the losses at {flops:.3g} FLOPs have no minimum over the size: train other sizes")
    best = middle - slope / (2 * curvature)
    lowest = constant - slope**2 / (4 * curvature)
    return IsoFlop(flops, float(np.exp(best)), float(lowest), float(curvature), (sizes.min(), sizes.max()))


@dataclass(frozen=True)
class PowerLaw:
    """y = coefficient x^exponent."""

    coefficient: float
    exponent: float

    def __call__(self, x):
        return self.coefficient * x**self.exponent


def power_law(points: Mapping[float, float]) -> PowerLaw:
    """The straight line through the logarithms of y by x, by least squares.

    Raises:
        ValueError: for fewer than 2 points.
    """
    if len(points) < 2:
        raise ValueError(f"a power law needs at least 2 points, got {len(points)}")
    x, y = np.array(list(points)), np.array(list(points.values()))
    check(x=x, y=y)
    exponent, constant = np.polyfit(np.log(x), np.log(y), 1)
    return PowerLaw(float(np.exp(constant)), float(exponent))
