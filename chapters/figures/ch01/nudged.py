"""Two runs that start one ulp apart: how far their weights are from each other, and their losses."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import SERIES


def draw(apart: np.ndarray, magnitude: np.ndarray, losses: Mapping[str, Sequence[float]]):
    """Return a matplotlib Figure of two panels.

    Args:
        apart: largest difference in any weight, after each step.
        magnitude: mean magnitude of a weight, after each step.
        losses: run -> loss of each step; the second run is drawn on top of the first.
    """
    figure, (left, right) = subplots(10, 3.4, 1, 2)
    left.semilogy(apart, color=SERIES[1], label="largest difference in any weight")
    left.semilogy(magnitude, color="#B0B0B0", linestyle="--", label="mean magnitude of a weight")
    left.set(xlabel="step", title="two runs, one ulp apart at the start")
    for (name, values), colour, width in zip(losses.items(), (SERIES[4], SERIES[1]), (4, 1), strict=True):
        right.plot(values, color=colour, linewidth=width, label=name)
    right.set(xlabel="step", title="their losses")
    for axes in (left, right):
        axes.legend(frameon=False)
    return figure
