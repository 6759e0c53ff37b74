"""Figure of what each rank sends in a step over the number of ranks, a curve for each method."""

from collections.abc import Mapping, Sequence

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES


def draw(ranks: Sequence[int], sent: Mapping[str, Sequence[float]]):
    """Draw the bytes of each method; return a matplotlib Figure."""
    figure, axes = subplot(8, 3)
    for place, (method, nbytes) in enumerate(sent.items()):
        axes.plot(ranks, [one / 1e6 for one in nbytes], ".-", color=SERIES[place], label=method)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(ranks, ranks)
    axes.minorticks_off()
    axes.set_xlabel("ranks", fontsize=9)
    axes.set_ylabel("MB that each sends in a step", fontsize=9)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    return figure
