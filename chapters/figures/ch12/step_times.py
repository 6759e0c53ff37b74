"""Figure of where each rank's time goes, step by step: computing, and waiting for the slowest."""

import numpy as np

from minidist.show.figures.subplots import subplot
from minidist.show.palette import of_rank

WAITING = "#E4E4E4"


def waiting_share(compute: np.ndarray) -> np.ndarray:
    """Return the share of each rank's time in which it waits, if a step takes as long as its slowest rank: (ranks,).

    Args:
        compute: seconds (ranks, steps).
    """
    return 1 - compute.sum(axis=1) / compute.max(axis=0).sum()


def draw(compute: np.ndarray, first: int = 0):
    """Return a matplotlib Figure: a row for each rank, time to the right, a number for each step.

    Args:
        compute: seconds (ranks, steps). A step takes as long as its slowest rank.
        first: number of the first step.
    """
    from matplotlib.patches import Rectangle

    ranks, lengths, waits = len(compute), compute.max(axis=0), waiting_share(compute)
    ends = np.cumsum(lengths)
    figure, axes = subplot(11, 0.42 * ranks + 0.9)
    for rank in range(ranks):
        axes.barh(rank, lengths, 0.74, ends - lengths, color=WAITING)
        axes.barh(rank, compute[rank], 0.74, ends - lengths, color=of_rank(rank))
        axes.text(ends[-1] * 1.008, rank, f"waits {waits[rank]:.0%}", va="center", fontsize=9)
    for end in ends:
        axes.axvline(end, color="white", lw=2)
    axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)], fontsize=9)
    axes.set_xticks(ends - lengths / 2, [f"step {first + step}" for step in range(len(ends))], fontsize=8.5)
    axes.set(xlim=(0, ends[-1] * 1.09), ylim=(ranks - 0.5, -0.5))
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    handles = [
        Rectangle((0, 0), 1, 1, color="#606060", label="computing (in the rank's colour)"),
        Rectangle((0, 0), 1, 1, color=WAITING, label="waiting for the slowest"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
