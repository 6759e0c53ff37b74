"""Where each rank's time goes, step by step: computing, and waiting for the slowest."""

import numpy as np

from minidist.show.palette import of_rank

WAITING = "#E4E4E4"


def waiting_share(compute: np.ndarray, walls: np.ndarray) -> np.ndarray:
    """The share of their time in which ranks wait: (ranks, steps) and (steps,) to (ranks,)."""
    return 1 - compute.sum(axis=1) / walls.sum()


def draw(compute: np.ndarray, walls: np.ndarray, first: int = 0):
    """A matplotlib Figure: a row for each rank, time to the right, a number for each step.

    Args:
        compute: seconds (ranks, steps).
        walls: seconds (steps,) that the steps took.
        first: number of the first step.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    ranks = len(compute)
    ends = np.cumsum(walls)
    figure = Figure(figsize=(11, 0.42 * ranks + 0.9), layout="constrained")
    axes = figure.subplots()
    waits = waiting_share(compute, walls)
    for rank in range(ranks):
        for end, wall, seconds in zip(ends, walls, compute[rank], strict=True):
            axes.barh(rank, wall, 0.74, end - wall, color=WAITING)
            axes.barh(rank, min(seconds, wall), 0.74, end - wall, color=of_rank(rank))
        axes.text(ends[-1] * 1.008, rank, f"waits {waits[rank]:.0%}", va="center", fontsize=9)
    for end in ends:
        axes.axvline(end, color="white", lw=2)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontsize=9)
    axes.set_xticks(ends - walls / 2, [f"step {first + step}" for step in range(len(ends))], fontsize=8.5)
    axes.set(xlim=(0, ends[-1] * 1.09), ylim=(ranks - 0.5, -0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    handles = [
        Rectangle((0, 0), 1, 1, color="#606060", label="computing (in the rank's colour)"),
        Rectangle((0, 0), 1, 1, color=WAITING, label="waiting"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
