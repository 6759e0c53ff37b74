"""Figure of how much longer the busiest rank's experts compute than the mean, over the steps of several runs."""

from collections.abc import Mapping

import numpy as np

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES

WINDOW, LAST = 5, 20  # steps: of the smoothed line, and of the mean in its label
COLOURS = (SERIES[1], SERIES[0], SERIES[2])


def draw(runs: Mapping[str, np.ndarray]):
    """Return a matplotlib Figure: a line for each run, name -> busiest rank's tokens over the mean, (steps,)."""
    figure, axes = subplot(11, 2.8)
    for (name, line), colour in zip(runs.items(), COLOURS, strict=True):
        smooth = np.convolve(line, np.ones(WINDOW) / WINDOW, "valid")
        steps = np.arange(len(smooth)) + WINDOW // 2
        axes.plot(steps, smooth, color=colour, lw=2)
        label = f"{name}: {line[-LAST:].mean():.1f}"
        axes.text(steps[-1] + 2.5, smooth[-1], label, color=colour, va="center", fontsize=10)
    axes.axhline(1, color="#9A9A9A", lw=1, ls=":")
    axes.set(xlim=(0, 157), ylim=(0.9, 4.1), xlabel="step", ylabel="busiest rank / mean")
    axes.set_xticks(range(0, 121, 20))
    return figure
