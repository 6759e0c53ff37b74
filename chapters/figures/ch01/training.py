"""The loss of a run next to the losses of models that know little, and its learning rate."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import SERIES

STEPS = 50  # that the smooth curve averages


def smooth(losses: Sequence[float]) -> np.ndarray:
    """Return the mean of each 50 consecutive losses."""
    return np.convolve(losses, np.ones(STEPS) / STEPS, "valid")


def draw(losses: Sequence[float], levels: Mapping[str, float], rates: Sequence[float]):
    """Return a matplotlib Figure.

    Args:
        losses: loss of each step.
        levels: label -> loss, for two dotted lines.
        rates: learning rate of each step.
    """
    figure, (curve, rate) = subplots(10, 3.2, 1, 2, width_ratios=[2.4, 1])
    curve.plot(losses, color="#B8D9EE", linewidth=0.8, label="each step")
    means = smooth(losses)
    curve.plot(np.arange(len(means)) + STEPS - 1, means, color=SERIES[0], label=f"mean of {STEPS} steps")
    for (name, level), colour in zip(levels.items(), (SERIES[1], SERIES[3]), strict=True):
        curve.axhline(level, color=colour, linestyle=":", label=name)
    curve.set(xlabel="step", ylabel="loss, nats per byte", ylim=(0.9, 5.8))
    curve.legend(frameon=False, loc="upper right", bbox_to_anchor=(1, 0.92))
    rate.plot(rates, color=SERIES[2])
    rate.set(xlabel="step", title="learning rate")
    return figure
