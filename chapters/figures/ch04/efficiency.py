"""Weak and strong scaling: the fraction of a step that a rank computes, against the number of ranks."""

from collections.abc import Mapping

import numpy as np

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES

COLOURS = tuple(SERIES[number] for number in (2, 0))


def draw(curves: Mapping[str, np.ndarray], ranks: np.ndarray):
    """Return a matplotlib Figure with a curve for each kind of scaling.

    Args:
        curves: label -> efficiency for each number of ranks.
        ranks: numbers of ranks, on a logarithmic axis.
    """
    figure, axes = subplot(11, 2.9)
    for (label, efficiency), colour in zip(curves.items(), COLOURS, strict=True):
        axes.plot(ranks, efficiency, marker="o", markersize=4, color=colour, label=label)
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [f"{count:,.0f}" for count in ranks])
    axes.minorticks_off()
    axes.set_ylim(0, 1.05)
    axes.set_xlabel("ranks")
    axes.set_title("efficiency: fraction of a step spent computing", loc="left", fontsize=11)
    axes.legend(frameon=False, loc="lower left")
    return figure
