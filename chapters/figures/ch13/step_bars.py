"""One step of several layouts on several networks: what of it a rank computes, and what it waits."""

from collections.abc import Mapping

from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS, on_paper

COMPUTING, WAITING = MEANINGS["computing"], on_paper("idle")


def draw(steps: Mapping[str, Mapping[str, tuple[float, float]]]):
    """Return a matplotlib Figure: a panel for each layout, a bar for each network.

    Args:
        steps: layout -> network -> (seconds of the step, of which an average rank computes).
    """
    from matplotlib.patches import Rectangle

    longest = max(total for networks in steps.values() for total, _ in networks.values())
    figure, grid = subplots(11, 2.9, 1, len(steps), sharey=True)
    for axes, (layout, networks) in zip(grid, steps.items(), strict=True):
        one = next(iter(networks.values()))[0]
        for place, (total, computing) in enumerate(networks.values()):
            axes.bar(place, 1e6 * computing, width=0.7, color=COMPUTING)
            axes.bar(place, 1e6 * (total - computing), bottom=1e6 * computing, width=0.7, color=WAITING)
            axes.text(place, 1e6 * (total + 0.02 * longest), f"{total / one:.2f}x", ha="center", fontsize=8.5)
        axes.set_xticks(range(len(networks)), list(networks), fontsize=8)
        axes.set_title(layout, fontsize=10)
    figure.axes[0].set_ylabel("microseconds of a step")
    figure.axes[0].set_ylim(0, 1e6 * longest * 1.12)
    handles = [
        Rectangle((0, 0), 1, 1, color=colour, label=word)
        for colour, word in ((COMPUTING, "computing"), (WAITING, "waiting for messages or other ranks"))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
