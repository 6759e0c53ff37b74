"""Figure of what a rank sends for one layer of attention, in two ways, by the number of ranks, on logarithmic axes."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS

COLOURS = MEANINGS["computing"], MEANINGS["reduce-scatter"]


def draw(ranks: Sequence[int], panels: Mapping[str, np.ndarray], labels: Sequence[str]):
    """Return a matplotlib Figure with a panel for each model.

    Args:
        ranks: numbers of ranks, the points of each line.
        panels: title -> GB that a rank sends, (lines, points).
        labels: names of the lines.
    """
    figure, grid = subplots(11, 2.8, 1, len(panels), sharey=True)
    for axes, (title, lines) in zip(grid, panels.items(), strict=True):
        for line, label, colour in zip(lines, labels, COLOURS, strict=True):
            axes.plot(ranks, line, "o-", color=colour, label=label, markersize=4)
        axes.set(xscale="log", yscale="log", xlabel="ranks")
        axes.set_title(title, fontsize=10)
        axes.set_xticks(ranks, ranks)
        axes.set_yticks([0.3, 1, 3, 10], ["0.3", "1", "3", "10"])
        axes.minorticks_off()
    figure.axes[0].set_ylabel("GB per layer, bf16")
    axes.legend(frameon=False)
    return figure
