"""The work that each context-parallel rank has with one micro-batch, chunk by chunk."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import ink_on, of_rank

NARROW = 0.05  # of a panel's width: a segment that has no room for its number


def busy(loads: np.ndarray) -> float:
    """Return the share of time in which ranks work, if all wait for the slowest in each step of (ranks, steps)."""
    return float(loads.mean(axis=0).sum() / loads.max(axis=0).sum())


def draw(deals: Mapping[str, Sequence[Sequence[int]]], work: Sequence[int]):
    """Return a matplotlib Figure: a panel for each deal, a bar for each rank, a segment for each of its chunks.

    Args:
        deals: title -> the chunks of each rank.
        work: of each chunk.
    """
    ranks = max(map(len, deals.values()))
    widest = max(sum(work[chunk] for chunk in mine) for deal in deals.values() for mine in deal)
    figure, grid = subplots(11, 0.8 + 0.32 * ranks, 1, len(deals))
    for axes, (title, deal) in zip(grid, deals.items(), strict=True):
        loads = np.array([[sum(work[chunk] for chunk in mine)] for mine in deal])
        for rank, mine in enumerate(deal):
            left = 0
            for chunk in mine:
                axes.barh(rank, work[chunk], 0.78, left, color=of_rank(rank), edgecolor="white", linewidth=1.2)
                if work[chunk] > NARROW * widest:
                    place = left + work[chunk] / 2, rank
                    axes.text(*place, chunk, ha="center", va="center", fontsize=8, color=ink_on(of_rank(rank)))
                left += work[chunk]
        axes.axvline(loads.mean(), color="#606060", linewidth=1, linestyle=":")
        axes.set_title(f"{title}: {busy(loads):.0%} busy", fontsize=10)
        axes.set_yticks(range(len(deal)), [f"rank {rank}" for rank in range(len(deal))], fontsize=9)
        axes.set(xlim=(0, 1.02 * widest), ylim=(len(deal) - 0.5, -0.5), xticks=[])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return figure
