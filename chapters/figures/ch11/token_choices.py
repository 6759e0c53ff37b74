"""Tokens across, experts down: which experts each token chose. Equal tokens can have a colour of their own."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplots

GREY = "#B8B8B8"


def draw(tokens: Sequence[str], panels: Mapping[str, np.ndarray], experts: int, highlight: Mapping[str, str]):
    """Return a matplotlib Figure: a grid for each panel, with a square for each choice.

    Args:
        tokens: N labels.
        panels: title -> the experts of each token, integers (N, k).
        experts: E.
        highlight: token -> the colour of all its squares; others are grey.
    """
    from matplotlib.patches import Rectangle

    figure, all_axes = subplots(11, (0.75 + 0.2 * experts) * len(panels), len(panels), 1)
    for axes, (title, chosen) in zip(all_axes, panels.items(), strict=True):
        for place, (token, mine) in enumerate(zip(tokens, chosen, strict=True)):
            colour = highlight.get(token, GREY)
            for expert in mine:
                axes.add_patch(Rectangle((place + 0.06, expert + 0.06), 0.88, 0.88, facecolor=colour))
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xticks(np.arange(len(tokens)) + 0.5, tokens, fontsize=11, family="monospace")
        for label in axes.get_xticklabels():
            colour = highlight.get(label.get_text())
            label.set(color=colour or "#404040", fontweight="bold" if colour else "normal")
        axes.set_yticks(np.arange(experts) + 0.5, range(experts), fontsize=8)
        axes.hlines(np.arange(experts + 1), 0, len(tokens), color="#E4E4E4", lw=0.7, zorder=0)
        axes.set_ylabel("expert", fontsize=9)
        axes.set(xlim=(0, len(tokens)), ylim=(experts, 0))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure
