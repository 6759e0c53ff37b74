"""Bytes and steps of all-reduces by the number of ranks."""

from collections.abc import Mapping

from minidist.show.palette import SERIES

COLOURS = {"naive": SERIES[3], "tree": SERIES[2], "ring": SERIES[0], "halving_doubling": SERIES[1]}


def draw(panels: Mapping[str, Mapping[tuple[str, int], float]], bound: float):
    """Return a matplotlib Figure with one plot for each quantity.

    Args:
        panels: title -> {(algorithm, ranks): quantity}.
        bound: what the ring's bytes approach; a dotted line in the plots of bytes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.9), layout="constrained")
    for axes, (title, quantities) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for name, colour in COLOURS.items():
            style = "s" if name == "halving_doubling" else "o-"
            points = [(ranks, value) for (which, ranks), value in quantities.items() if which == name]
            axes.plot(*zip(*points, strict=True), style, color=colour, label=name)
        if "bytes" in title:
            axes.axhline(bound, color="#999999", linestyle=":")
        axes.set(title=title, xlabel="ranks", ylim=0)
        axes.locator_params(axis="y", integer=True)
        axes.spines[["top", "right"]].set_visible(False)
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False)
    return figure
