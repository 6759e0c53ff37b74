"""The time of one message by its size, measured and fitted."""

import numpy as np

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES


def draw(sizes: np.ndarray, seconds: np.ndarray, alpha: float, beta: float):
    """Return a matplotlib Figure on logarithmic axes: dots, alpha + beta n, and where both parts are equal."""
    figure, axes = subplot(7, 3.4)
    axes.loglog(sizes, 1e6 * seconds, "o", color=SERIES[0], label="measured")
    axes.loglog(sizes, 1e6 * (alpha + beta * sizes), color=SERIES[1], label="alpha + beta n")
    axes.axvline(alpha / beta, color="#999999", linestyle=":", label="n = alpha / beta")
    axes.set(xlabel="bytes", ylabel="microseconds")
    axes.set_title("One message, two ranks, this machine", loc="left", fontsize=11)
    axes.legend(frameon=False)
    return figure
