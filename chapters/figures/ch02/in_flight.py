"""An array of zeros and ones as it was sent, and as it arrived."""

import numpy as np

from minidist.show.palette import SERIES


def draw(received: np.ndarray):
    """Return a matplotlib Figure with two strips: only zeros, and every thousandth element of what arrived."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 1.3), layout="constrained")
    axes, arrived = figure.subplots(), received[::1000]
    strips, colours = np.stack([np.zeros(len(arrived)), arrived]), ListedColormap(SERIES[:2])
    axes.imshow(strips, aspect="auto", cmap=colours, vmin=0, vmax=1, interpolation="nearest")
    axes.set(xticks=[], yticks=[0, 1])
    axes.set_yticklabels(["as sent", "as received"])
    axes.set_title("blue: 0, orange: 1", loc="left", fontsize=10)
    axes.spines[:].set_visible(False)
    return figure
