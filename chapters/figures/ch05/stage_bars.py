"""Memory per rank in each stage of ZeRO, computed from the bytes per parameter."""

from collections.abc import Mapping

from minidist.show.figures.memory import COLOURS
from minidist.show.figures.subplots import subplot


def draw(bars: Mapping[str, Mapping[str, float]], label: str):
    """Return a matplotlib Figure: a bar for each stage, a segment for each kind of memory, the sum at its end.

    Args:
        bars: stage -> kind -> GB.
        label: label of the horizontal axis.
    """
    figure, axes = subplot(11, 2.3)
    for row, (stage, amounts) in enumerate(bars.items()):
        left = 0.0
        for kind, amount in amounts.items():
            axes.barh(stage, amount, 0.7, left, color=COLOURS[kind], label=kind if row == 0 else None)
            left += amount
        axes.text(left + 0.7, row, f"{left:.1f} GB", va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, 130)
    axes.set_xlabel(label)
    axes.legend(frameon=False, loc="lower right")
    return figure
