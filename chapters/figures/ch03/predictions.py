"""Predicted times of all-reduces as lines, and the measured ones as dots."""

from collections.abc import Mapping, Sequence

from figures.ch03.costs import COLOURS
from minidist.show.figures.subplots import subplots


def draw(sizes: Sequence[int], panels: Mapping[str, Mapping[str, tuple]]):
    """Return a matplotlib Figure on logarithmic axes.

    Args:
        sizes: of the arrays, in bytes.
        panels: title -> {algorithm: (predicted, measured)}, in seconds, for each size.
    """
    figure, grid = subplots(10, 3.6, 1, len(panels), sharey=True)
    for axes, (title, algorithms) in zip(grid, panels.items(), strict=True):
        for name, (predicted, measured) in algorithms.items():
            axes.loglog(sizes, 1e6 * predicted, color=COLOURS[name], label=f"{name}, predicted")
            axes.loglog(sizes, 1e6 * measured, "o", color=COLOURS[name], markersize=4, label=f"{name}, measured")
        axes.set(title=title, xlabel="bytes")
    grid[0].set_ylabel("microseconds")
    axes.legend(frameon=False)
    return figure
