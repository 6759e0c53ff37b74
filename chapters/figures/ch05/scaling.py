"""Figure of what a step of ZeRO stage 3 takes on more and more ranks: compute, bytes and latency."""

from collections.abc import Mapping

import numpy as np

from minidist.show.figures.subplots import subplot


def draw(lines: Mapping[str, np.ndarray], ranks: np.ndarray):
    """Return a matplotlib Figure with a line for each part of a step, on logarithmic axes.

    Args:
        lines: label -> seconds for each number of ranks.
        ranks: numbers of ranks.
    """
    figure, axes = subplot(11, 2.9)
    for (label, seconds), colour in zip(lines.items(), ("#0072B2", "#E69F00", "#D55E00"), strict=True):
        axes.plot(ranks, seconds, marker="o", markersize=4, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(0.05, 400)
    axes.set_xticks(ranks, [f"{count:,.0f}" for count in ranks])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.set_ylabel("seconds per step")
    axes.legend(frameon=False)
    return figure
