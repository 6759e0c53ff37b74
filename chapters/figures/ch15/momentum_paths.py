"""Asynchronous descent on a parabola: some paths, their mean, and descent with momentum."""

from collections.abc import Mapping

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import SERIES


def draw(panels: Mapping[int, tuple[np.ndarray, np.ndarray]]):
    """Draw paths and theory for each number of workers; return a matplotlib Figure.

    Args:
        panels: workers -> paths (paths, steps + 1), and the path with momentum (steps + 1,).
    """
    figure, all_axes = subplots(11, 2.6, 1, len(panels), sharey=True)
    for axes, (workers, (paths, theory)) in zip(all_axes, panels.items(), strict=True):
        axes.plot(paths[:5].T, color=SERIES[4], lw=0.6)
        axes.plot(paths.mean(axis=0), color=SERIES[0], lw=4, alpha=0.6, label=f"mean of {len(paths):,} runs")
        axes.plot(theory, "--", color=SERIES[1], label=f"momentum {1 - 1 / workers:g}")
        axes.set_title(f"{workers} workers" if workers > 1 else "1 worker", fontsize=10)
        axes.set_xlabel("updates", fontsize=9)
        axes.legend(frameon=False, fontsize=9)
    return figure
