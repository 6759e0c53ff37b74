"""Histograms of the distances between floating-point results, in ulps (minidist/verify/ulps.py)."""

from collections.abc import Mapping

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import on_paper

SAME, APART = on_paper("result"), on_paper("wrong")


def shares(ulps: np.ndarray, most: int) -> np.ndarray:
    """Return the share of elements at -most, ..., -1, 0, 1, ..., most ulps; larger distances count at the ends.

    Args:
        ulps: int64, of any shape.

    Returns:
        (2 most + 1,)
    """
    counts = np.bincount(np.clip(ulps, -most, most).reshape(-1) + most, minlength=2 * most + 1)
    return counts / ulps.size


def draw(panels: Mapping[str, np.ndarray], most: int = 5):
    """Return a matplotlib Figure: a histogram for each array of distances, with the unchanged elements in green.

    Args:
        panels: title -> distances, from ``ulps_between``.
        most: larger distances share the outermost bars.
    """
    distances = np.arange(-most, most + 1)
    figure, grid = subplots(11, 2.9, 1, len(panels), sharey=True)
    for axes, (title, ulps) in zip(grid, panels.items(), strict=True):
        heights = 100 * shares(ulps, most)
        axes.bar(distances, heights, color=[SAME if distance == 0 else APART for distance in distances], width=0.85)
        changed = 100 * np.count_nonzero(ulps) / ulps.size
        axes.set_title(title, loc="left", fontsize=11)
        note = "all bits the same" if changed == 0 else f"{changed:.0f}% of the sums\nhave different bits"
        axes.text(0.98, 0.95, note, transform=axes.transAxes, ha="right", va="top", color=APART if changed else SAME)
        axes.set_xticks([-most, 0, most], [f"≤ −{most}", "0", f"≥ {most}"])
        axes.set_xlabel("distance, ulps")
        axes.set_ylim(0, 128)
        axes.set_yticks([0, 50, 100])
    figure.axes[0].set_ylabel("% of the sums")
    return figure
