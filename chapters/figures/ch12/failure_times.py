"""The mean time between failures against the number of GPUs: a straight line, and what it falls below."""

from collections.abc import Mapping

import numpy as np

from minidist.plan.goodput import cluster_mtbf
from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES

LINE, POINT, GREY = SERIES[0], SERIES[1], "#606060"


def draw(gpu_hours: float, points: Mapping[str, tuple[int, float]], lengths: Mapping[str, float]):
    """Return a matplotlib Figure with both axes logarithmic.

    Args:
        gpu_hours: MTBF of one GPU.
        points: label -> GPUs and hours, of runs that were counted.
        lengths: label -> hours, for levels to compare with.
    """
    figure, axes = subplot(11, 3.4)
    gpus = 10 ** np.arange(6)
    axes.plot(gpus, [cluster_mtbf(gpu_hours, int(count)) for count in gpus], color=LINE, marker="o", markersize=4)
    for label, hours in lengths.items():
        axes.axhline(hours, color=GREY, lw=0.8, ls=":")
        axes.text(1.15, hours * 1.12, label, color=GREY, fontsize=9, va="bottom")
    for label, (count, hours) in points.items():
        axes.plot(count, hours, "o", color=POINT, markersize=9, zorder=3)
        axes.annotate(
            label, (count, hours), (12, 10), textcoords="offset points", color=POINT, ha="left", va="bottom", fontsize=9
        )
    axes.set(xscale="log", yscale="log", xlim=(0.9, 1.3e5), xlabel="GPUs", ylabel="MTBF, hours")
    axes.set_xticks(gpus, [f"{count:,}" for count in gpus])
    axes.set_yticks(10.0 ** np.arange(6), [f"{10**power:,}" for power in range(6)])
    axes.minorticks_off()
    return figure
