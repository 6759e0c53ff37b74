"""A map of the weights whose bits differ: a row for each run, a column for each group of weights."""

from collections.abc import Mapping

import numpy as np


def draw(shares: Mapping[str, Mapping[str, float]]):
    """Return a matplotlib Figure.

    Args:
        shares: run -> group of weights -> share of its elements that differ.
    """
    from matplotlib.figure import Figure

    rows = np.array([list(groups.values()) for groups in shares.values()])  # (runs, groups)
    groups = list(next(iter(shares.values())))
    figure = Figure(figsize=(11, 1.9), layout="constrained")
    axes = figure.subplots()
    axes.imshow(rows, cmap="OrRd", vmin=0, vmax=1.3, aspect="auto")
    for (row, column), share in np.ndenumerate(rows):
        axes.text(column, row, f"{share:.0%}" if share else "same", ha="center", va="center", fontsize=9)
    labels = [name.replace("blocks.", "block ").replace("attention.", "").strip(".") for name in groups]
    axes.set_xticks(range(len(labels)), [label.replace(".", "\n") for label in labels], fontsize=9)
    axes.set_yticks(range(len(shares)), [name.replace(", ", ",\n") for name in shares], fontsize=9)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    axes.vlines(np.arange(len(labels) - 1) + 0.5, -0.5, len(shares) - 0.5, color="white", linewidth=2)
    axes.hlines(np.arange(len(shares) - 1) + 0.5, -0.5, len(labels) - 0.5, color="white", linewidth=2)
    return figure
