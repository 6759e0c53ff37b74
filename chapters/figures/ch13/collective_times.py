"""Figure of how long an all-reduce takes by its size: lines are closed forms, points are runs on the clock."""

from collections.abc import Mapping

from minidist.show.figures.subplots import subplots
from minidist.show.palette import SERIES

MARKERS = "osD^vP"  # several points may be in one place
COLOURS = tuple(SERIES[number] for number in (5, 4, 2, 0, 1, 3))


def draw(panels: Mapping[str, Mapping[str, tuple[Mapping[float, float], Mapping[float, float]]]]):
    """Return a matplotlib Figure.

    Args:
        panels: title -> algorithm -> (bytes -> seconds by the closed form, bytes -> seconds on the clock).
    """
    figure, all_axes = subplots(11, 3.4, 1, len(panels), sharey=True)
    for axes, (title, algorithms) in zip(all_axes, panels.items(), strict=True):
        for colour, marker, (name, (line, points)) in zip(COLOURS, MARKERS, algorithms.items(), strict=False):
            axes.plot(list(line), [1e6 * seconds for seconds in line.values()], color=colour, label=name, lw=1.8)
            clock = [1e6 * seconds for seconds in points.values()]
            axes.plot(list(points), clock, marker, color=colour, markersize=8, fillstyle="none", markeredgewidth=1.8)
        axes.set(xscale="log", yscale="log", xlabel="bytes")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("microseconds")
    figure.axes[0].legend(frameon=False, fontsize=8.5)
    return figure
