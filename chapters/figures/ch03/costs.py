"""Bytes and steps of all-reduces by the number of ranks."""

from collections.abc import Mapping

from minidist.show.figures.subplots import subplots
from minidist.show.palette import SERIES

COLOURS = {"naive": SERIES[3], "tree": SERIES[2], "ring": SERIES[0], "halving_doubling": SERIES[1]}


def draw(panels: Mapping[str, Mapping[tuple[str, int], float]], bound: float):
    """Return a matplotlib Figure with one plot for each quantity.

    Args:
        panels: title -> {(algorithm, ranks): quantity}.
        bound: what the ring's bytes approach; a dotted line in the plots of bytes.
    """
    figure, grid = subplots(11, 2.9, 1, len(panels))
    for axes, (title, quantities) in zip(grid, panels.items(), strict=True):
        for name, colour in COLOURS.items():
            style = "s" if name == "halving_doubling" else "o-"
            points = [(ranks, value) for (which, ranks), value in quantities.items() if which == name]
            axes.plot(*zip(*points, strict=True), style, color=colour, label=name)
        if "bytes" in title:
            axes.axhline(bound, color="#999999", linestyle=":")
        axes.set(title=title, xlabel="ranks", ylim=0)
        axes.locator_params(axis="y", integer=True)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure
