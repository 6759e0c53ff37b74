"""Figure of the times of a mixture's all-to-alls by the number of expert-parallel ranks, next to all-reduces."""

from collections.abc import Mapping, Sequence

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES

COLOURS = (SERIES[4], SERIES[0], SERIES[3])  # of k = 1, 2, 8
GREY = "#444444"


def draw(ranks: Sequence[int], times: Mapping[int, Sequence[float]], limited: Sequence[float], rivals: Mapping):
    """Return a matplotlib Figure on two logarithmic axes.

    Args:
        ranks: the values of ep.
        times: k -> the time for each value of ep.
        limited: the time of the largest k with a limit of nodes, for the last values of ep.
        rivals: name -> (time of an all-reduce, where on the x axis its name is written).
    """
    figure, axes = subplot(11, 3.6)
    for (k, seconds), colour in zip(times.items(), COLOURS, strict=True):
        axes.plot(ranks, seconds, "o-", color=colour, markersize=4)
        axes.text(68, seconds[-1], f"all-to-all, k = {k}", color=colour, va="center")
    axes.plot(ranks[-len(limited) :], limited, "o--", color=colour, markersize=4)
    label = f"k = {k}, at most 4 nodes,\neach visited once"
    axes.text(68, limited[-1], label, color=colour, va="center", fontsize=9)
    for name, (level, x) in rivals.items():
        axes.axhline(level, color=GREY, lw=1.2, ls=":")
        axes.text(x, level * 1.1, name, fontsize=9, color=GREY, va="bottom")
    axes.axvspan(2, 8, color="#F2F2F2", zorder=0)
    axes.text(2.1, 400, "one node", fontsize=9, color="#606060", va="center")
    axes.set(xscale="log", yscale="log", xlim=(1.9, 150), ylim=(1, 600), xlabel="ranks that share the experts: ep")
    axes.set_ylabel("time, in n C elements\non the fast link")
    axes.set_xticks(ranks, ranks)
    axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    axes.minorticks_off()
    return figure
