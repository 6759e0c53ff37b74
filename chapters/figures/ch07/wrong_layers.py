"""Where the weights of runs with a bug differ from those of a correct run: a table of shares, layer by layer."""

from collections.abc import Sequence

import numpy as np


def draw(shares: np.ndarray, runs: Sequence[str], groups: Sequence[str]):
    """Return a matplotlib Figure: a cell for each run and each group of weights, darker for a larger share.

    Args:
        shares: (runs, groups), the share of the group's weights that differ.
        runs: titles of the rows.
        groups: titles of the columns.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 2.5), layout="constrained")
    axes = figure.subplots()
    axes.imshow(shares, cmap="OrRd", vmin=0, vmax=1.3, aspect="auto")
    for (row, column), share in np.ndenumerate(shares):
        axes.text(column, row, f"{share:.0%}" if share else "same", ha="center", va="center", fontsize=9)
    axes.set_xticks(range(len(groups)), groups, fontsize=9)
    axes.set_yticks(range(len(runs)), runs, fontsize=9)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.set_xticks(np.arange(len(groups) - 1) + 0.5, minor=True)
    axes.set_yticks(np.arange(len(runs) - 1) + 0.5, minor=True)
    axes.grid(which="minor", color="white", linewidth=3)
    axes.tick_params(which="minor", length=0)
    return figure
