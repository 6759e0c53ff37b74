"""The share of the tokens that each expert gets, step by step: even bands, or one band that swallows the others."""

from collections.abc import Mapping

import numpy as np

from minidist.show.figures.subplots import subplots


def draw(panels: Mapping[str, np.ndarray]):
    """Return a matplotlib Figure: a panel for each run, title -> the tokens of each expert in each step, (steps, E)."""
    import matplotlib

    figure, grid = subplots(11, 3.1, 1, len(panels), sharey=True)
    for axes, (title, tokens) in zip(grid, panels.items(), strict=True):
        steps, experts = tokens.shape
        shares = tokens / tokens.sum(axis=1, keepdims=True)
        colours = matplotlib.colormaps["viridis"](np.linspace(0.08, 0.95, experts))
        axes.stackplot(np.arange(steps), shares.T, colors=colours, edgecolor="white", linewidth=0.4)
        axes.set_title(title, fontsize=10)
        axes.set(xlim=(0, steps - 1), ylim=(0, 1), xlabel="step")
        axes.set_yticks([0, 0.5, 1], ["0", "50 %", "100 %"])
        axes.spines[:].set_visible(False)
    figure.axes[0].set_ylabel("share of the tokens")
    return figure
