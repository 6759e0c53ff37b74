"""Figure of what forward saves for backward on a rank, by kind, in several layouts."""

from collections.abc import Mapping

from figures.ch06.recorded import KINDS
from minidist.show.figures.subplots import subplot

COLOURS = dict(zip(KINDS, ("#CC79A7", "#E69F00", "#56B4E9", "#A0A0A0"), strict=True))


def draw(layouts: Mapping[str, Mapping[str, int]]):
    """Return a matplotlib Figure: a bar for each layout, title -> bytes by kind."""
    figure, axes = subplot(11, 2.9)
    for place, nbytes in enumerate(layouts.values()):
        left = 0.0
        for kind, colour in COLOURS.items():
            axes.barh(place, nbytes[kind] / 1e3, 0.7, left, color=colour, label=kind if place == 0 else None)
            left += nbytes[kind] / 1e3
        axes.text(left + 8, place, f"{left:,.0f} kB", va="center")
    axes.set_yticks(range(len(layouts)), layouts)
    axes.invert_yaxis()
    axes.xaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("saved for backward per rank, kB: two layers, one micro-batch")
    axes.legend(frameon=False, loc="lower right")
    return figure
