"""Every pair of settings with the share of its runs that had wrong bits: a picture of ``verify.matrix``."""

from collections.abc import Sequence

import numpy as np

from minidist.show.figures.grid import COLOURS
from minidist.show.figures.subplots import subplot
from minidist.verify.matrix import DIFFERENT, IMPOSSIBLE, SAME, Outcome, bad_and_all, values_of


def draw(outcomes: Sequence[Outcome], title: str = ""):
    """Return a matplotlib Figure: the matrix of pairs, green if all runs had the right bits, redder if fewer had."""
    from matplotlib.colors import LinearSegmentedColormap

    values = values_of([outcome.combination for outcome in outcomes])
    names = [f"{key}={value}" for key, value in values]
    found, count = bad_and_all(outcomes), len(values)
    cells = np.full((count, count), np.nan)
    figure, axes = subplot(11, 8)
    axes.set_facecolor("white")
    for y, x in zip(*np.tril_indices(count, -1), strict=True):
        bad, met = found.get(frozenset((values[y], values[x])), (0, 0))
        cells[y, x] = -1 if not met else bad / met
        if bad:
            colour = "white" if bad == met else "black"
            axes.text(x + 0.5, y + 0.5, f"{bad}/{met}", ha="center", va="center", fontsize=8, color=colour)
    grey = np.ma.masked_not_equal(cells, -1)
    axes.pcolormesh(grey, cmap=LinearSegmentedColormap.from_list("", [COLOURS[IMPOSSIBLE]] * 2), edgecolors="white")
    stops = [(0, COLOURS[SAME]), (0.001, "#FFF0E0"), (1, COLOURS[DIFFERENT])]
    shades = LinearSegmentedColormap.from_list("", stops, 1001)
    met_cells = np.ma.masked_invalid(np.ma.masked_equal(cells, -1))
    axes.pcolormesh(met_cells, cmap=shades, vmin=0, vmax=1, edgecolors="white", linewidth=1)
    axes.set(xlim=(0, count), ylim=(count, 0), aspect="equal")
    axes.set_yticks([i + 0.5 for i in range(count)], names, fontsize=8)
    axes.set_xticks([i + 0.5 for i in range(count)], names, rotation=90, fontsize=8)
    axes.set_title(title, fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure
