"""Figure of which weights differ: a table of shares, a row for each run, a column for each group of weights."""

from collections.abc import Mapping

import numpy as np

from minidist.show.figures.subplots import subplot


def draw(shares: Mapping[str, Mapping[str, float]]):
    """Return a matplotlib Figure: a cell for each run and each group of weights, darker for a larger share.

    Args:
        shares: title of the run -> title of the group -> the share of the group's weights that differ.
    """
    runs, groups = list(shares), list(next(iter(shares.values())))
    rows = np.array([list(row.values()) for row in shares.values()])  # (runs, groups)
    figure, axes = subplot(11, 1.3 + 0.3 * len(runs))
    axes.imshow(rows, cmap="OrRd", vmin=0, vmax=1.3, aspect="auto")
    for (row, column), share in np.ndenumerate(rows):
        axes.text(column, row, f"{share:.0%}" if share else "same", ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(groups)), groups, fontsize=9)
    axes.set_yticks(range(len(runs)), runs, fontsize=9)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.vlines(np.arange(len(groups) - 1) + 0.5, -0.5, len(runs) - 0.5, color="white", linewidth=2)
    axes.hlines(np.arange(len(runs) - 1) + 0.5, -0.5, len(groups) - 0.5, color="white", linewidth=2)
    return figure
