"""GELU with its slope, and token vectors before and after LayerNorm."""

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import SERIES


def draw(x: np.ndarray, gelu: np.ndarray, slope: np.ndarray, vectors: np.ndarray, normal: np.ndarray):
    """Return a matplotlib Figure of three panels.

    Args:
        x, gelu, slope: (n,) each.
        vectors, normal: one vector per token before and after, (tokens, C) each.
    """
    figure, (left, middle, right) = subplots(10, 3, 1, 3)
    left.plot(x, gelu, color=SERIES[0], label="GELU")
    left.plot(x, slope, color=SERIES[5], label="its slope")
    left.legend(frameon=False)
    for axes, values, title in ((middle, vectors, "three tokens before LayerNorm"), (right, normal, "and after")):
        for token, colour in zip(values, SERIES[2:], strict=False):
            axes.plot(token, ".", color=colour)
        axes.set_title(title, fontsize=11)
        axes.set_xlabel("channel")
    return figure
