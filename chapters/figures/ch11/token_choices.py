"""Tokens across, experts down: which experts each token chose, and how much it listens to each."""

from collections.abc import Sequence

import numpy as np


def chosen_weights(weights: np.ndarray, chosen: np.ndarray, experts: int) -> np.ndarray:
    """The weight of every expert for every token, (E, N): 0 for one that was not chosen.

    Args:
        weights: (N, k)
        chosen: integers (N, k)
        experts: E.
    """
    found = np.zeros((experts, len(chosen)))
    found[chosen, np.arange(len(chosen))[:, None]] = weights
    return found


def draw(tokens: Sequence[str], panels: dict[str, np.ndarray]):
    """A matplotlib Figure: a grid for each panel, title -> weights (E, N)."""
    from matplotlib.figure import Figure

    experts = len(next(iter(panels.values())))
    figure = Figure(figsize=(11, (0.9 + 0.21 * experts) * len(panels)), layout="constrained")
    for axes, (title, weights) in zip(
        figure.subplots(len(panels), 1, squeeze=False)[:, 0], panels.items(), strict=True
    ):
        image = axes.pcolormesh(
            np.where(weights > 0, weights, np.nan), cmap="Blues", vmin=0, vmax=1, edgecolors="#E4E4E4", linewidth=0.5
        )
        axes.set_facecolor("#FAFAFA")
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xticks(np.arange(len(tokens)) + 0.5, tokens, fontsize=9, family="monospace")
        axes.set_yticks(np.arange(experts) + 0.5, range(experts), fontsize=8)
        axes.set_ylabel("expert", fontsize=9)
        axes.invert_yaxis()
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    figure.colorbar(image, ax=figure.axes, label="weight", ticks=[0, 0.5, 1], pad=0.01, aspect=25)
    return figure
