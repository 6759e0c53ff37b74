"""Figure of what a larger batch buys: steps against samples, both over their fewest."""

import numpy as np

from minidist.plan.batches import samples_to_loss, steps_to_loss
from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES


def draw():
    """Draw steps and samples to one loss over the batch; return a matplotlib Figure."""
    figure, axes = subplot(7, 2.8)
    batches = np.geomspace(0.05, 20, 100)
    axes.plot(batches, [steps_to_loss(b, 1, 1) for b in batches], color=SERIES[0], label="steps / S_min")
    axes.plot(batches, [samples_to_loss(b, 1, 1) for b in batches], color=SERIES[1], label="samples / E_min")
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("batch / critical batch", fontsize=9)
    axes.set_ylabel("times the fewest", fontsize=9)
    axes.legend(frameon=False, fontsize=9)
    return figure
