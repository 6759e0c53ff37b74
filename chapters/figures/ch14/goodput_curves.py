"""The useful share of a run's time over its number of GPUs, a curve for each time that a restart takes."""

from collections.abc import Mapping

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES


def draw(shares: Mapping[tuple[int, int], float]):
    """Draw (GPUs, seconds of a restart) -> goodput; return a matplotlib Figure."""
    figure, axes = subplot(8, 2.8)
    for place, restart in enumerate(dict.fromkeys(seconds for _, seconds in shares)):
        curve = {gpus: 100 * share for (gpus, seconds), share in shares.items() if seconds == restart}
        axes.plot(*zip(*curve.items(), strict=True), "o-", color=SERIES[place], label=f"restart: {restart // 60} min")
    axes.set(xscale="log", ylim=(0, 100))
    axes.set_xlabel("GPUs", fontsize=9)
    axes.set_ylabel("goodput, %", fontsize=9)
    axes.legend(frameon=False, fontsize=9)
    return figure
