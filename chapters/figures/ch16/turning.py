"""Rotary positions: pairs of values turned by their token's position, and the products of turned queries and keys."""

from collections.abc import Mapping

import numpy as np

from minidist.show.palette import SERIES, of_version

CIRCLE = 0.8  # the radius of the arrows' circle, in half the width of its panel


def draw(angles: np.ndarray, products: Mapping[int, np.ndarray]):
    """Return a matplotlib Figure: a circle for each pair, with an arrow for each position; then the products.

    Args:
        angles: in radians, of each position and pair, (positions, pairs).
        products: the key's position -> the products with a query at distance 0, 1, ... after it.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Circle

    figure = Figure(figsize=(11, 2.7), layout="constrained")
    pairs = angles.shape[1]
    panels = figure.subplots(1, pairs + 1, width_ratios=[1] * pairs + [2.2])
    for pair, axes in enumerate(panels[:-1]):
        axes.add_patch(Circle((0, 0), CIRCLE, fill=False, edgecolor="#D0D0D0"))
        for position, angle in reversed([*enumerate(angles[:, pair])]):  # position 0 on top
            tip = CIRCLE * np.cos(angle), CIRCLE * np.sin(angle)
            colour = of_version(position, len(angles) - 1)
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 1.8, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", xy=tip, xytext=(0, 0), arrowprops=arrow)
        apart = CIRCLE * np.diff(angles[:2, pair])[0] > 0.15
        for position in range(len(angles)) if apart else (0, len(angles) - 1):
            angle = angles[position, pair] + (0 if apart else 0.16 * (1 if position else -1))
            place = 1.16 * CIRCLE * np.cos(angle), 1.16 * CIRCLE * np.sin(angle)
            axes.text(*place, position, ha="center", va="center", fontsize=9)
        axes.set(xlim=(-1, 1), ylim=(-1, 1), aspect="equal")
        axes.set_title(f"pair {pair}", fontsize=10)
        axes.axis("off")
    axes = panels[-1]
    for number, (first, values) in enumerate(products.items()):
        size = 11 - 3 * number
        axes.plot(values, "o", color=SERIES[number], markersize=size, label=f"key at {first}", markeredgewidth=0)
    axes.set(xlabel="query's position − key's position", ylabel="query · key")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8, loc="lower center", bbox_to_anchor=(0.5, 1), ncols=3, columnspacing=1)
    return figure
