"""Figure of how stale the updates of an asynchronous server are: a histogram for each set of workers."""

from collections.abc import Mapping, Sequence
from math import inf

import numpy as np

from figures.ch15.worker_lanes import spans
from minidist.show.figures.subplots import subplots
from minidist.show.palette import PAPER, SERIES

FIRST = 50  # updates that are left out: at the beginning all weights are new


def staleness_of(seconds: Sequence[float], updates: int = 6000) -> list[list[int]]:
    """Return the staleness of each worker's updates, from the seconds that each takes for a step."""
    steps = spans(seconds, updates, inf)[FIRST:updates]
    return [[step.applied - step.read for step in steps if step.worker == worker] for worker in range(len(seconds))]


def draw(panels: Mapping[str, Sequence[Sequence[int]]]):
    """Draw a histogram for each title, the last worker's updates dark; return a matplotlib Figure."""
    figure, all_axes = subplots(11, 2.6, 1, len(panels), sharey=True)
    for axes, (title, by_worker) in zip(all_axes, panels.items(), strict=True):
        parts, mean = [np.concatenate(by_worker[:-1]), by_worker[-1]], np.concatenate(by_worker).mean()
        axes.hist(parts, bins=np.arange(-0.5, 18), stacked=True, color=[SERIES[4], SERIES[0]])
        axes.axvline(mean, color=PAPER["wrong"], ls="--")
        axes.set_title(f"{title}: mean {mean:.2f}", fontsize=9.5)
        axes.set_xticks(range(0, 18, 3))
        axes.set_xlabel("staleness", fontsize=9)
    all_axes[0].set_ylabel("updates", fontsize=9)
    return figure
