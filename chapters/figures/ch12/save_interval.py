"""The waste of a run against the interval between its saves: a valley for each price of a save."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.plan.goodput import daly_interval, first_order_waste, goodput
from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES

COLOURS = tuple(SERIES[number] for number in (0, 2, 1, 3))


def draw(mtbf: float, pauses: Sequence[float], simulated: Mapping[float, Mapping[float, float]], recovery: float = 0.0):
    """Return a matplotlib Figure: for each pause the exact waste (a line), its first order (dashed), simulated runs.

    Args:
        mtbf, pauses, recovery: in seconds.
        simulated: pause -> interval, in seconds -> waste found.
    """
    figure, axes = subplot(11, 3.7)
    intervals = np.geomspace(60, 4 * 3600, 200)
    for pause, colour in zip(pauses, COLOURS, strict=False):
        exact = [1 - goodput(mtbf, tau, pause, recovery) for tau in intervals]
        axes.plot(intervals / 60, exact, color=colour)
        axes.plot(intervals / 60, [first_order_waste(mtbf, tau, pause, recovery) for tau in intervals], "--",
                  color=colour, lw=0.9)  # fmt: skip
        best = daly_interval(mtbf, pause)
        least = 1 - goodput(mtbf, best, pause, recovery)
        axes.plot(best / 60, least, "o", color=colour, markersize=9)
        above = first_order_waste(mtbf, best, pause, recovery) - least < 0.01  # there is room below the dashed line
        axes.annotate(
            f"{best / 60:.1f} min: {least:.1%}",
            (best / 60, least),
            (0, 9 if above else -16),
            textcoords="offset points",
            ha="center",
            color=colour,
            fontsize=9,
        )
        left = next(place for place, waste in enumerate(exact) if waste < 0.5)
        axes.annotate(
            f"a save takes {pause:g} s", (intervals[left] / 60, exact[left]), (5, 4), textcoords="offset points",
            color=colour, fontsize=9, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1, "alpha": 0.8},
        )  # fmt: skip
        found = simulated.get(pause, {})
        axes.plot(np.array(list(found)) / 60, list(found.values()), "x", color=colour, markersize=7, mew=1.8)
    axes.set(xscale="log", xlim=(1, 240), ylim=(-0.02, 0.62), xlabel="interval between saves, minutes")
    axes.set_ylabel("waste")
    ticks = (1, 3, 10, 30, 60, 120, 240)
    axes.set_xticks(ticks, ticks)
    axes.set_yticks([0, 0.2, 0.4, 0.6], ["0", "20 %", "40 %", "60 %"])
    axes.minorticks_off()
    return figure
