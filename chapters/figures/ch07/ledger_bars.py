"""Peak activation memory of each rank of a pipeline, from the memory ledger, for growing numbers of micro-batches."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import of_rank


def draw(schedules: Mapping[str, Sequence[Sequence[int]]], micro_batches: Sequence[int]):
    """Return a matplotlib Figure: a panel for each schedule, a group of bars for each number of micro-batches.

    Args:
        schedules: title -> for each number of micro-batches the bytes on each rank.
        micro_batches: the numbers of micro-batches.
    """
    figure, panels = subplots(11, 2.6, 1, len(schedules), sharey=True)
    ranks = len(next(iter(schedules.values()))[0])
    for axes, (title, groups) in zip(panels, schedules.items(), strict=True):
        for place, held in enumerate(groups):
            left = (ranks + 1) * place
            colours = [of_rank(rank) for rank in range(ranks)]
            axes.bar(left + np.arange(ranks), [nbytes / 1e6 for nbytes in held], 0.85, color=colours)
        middles = [(ranks + 1) * place + (ranks - 1) / 2 for place in range(len(groups))]
        axes.set_xticks(middles, [f"m = {m}" for m in micro_batches])
        axes.set_title(f"{title}: peak activation memory", loc="left", fontsize=10)
    panels[0].set_ylabel("MB (memory ledger)")
    handles = [panels[0].bar(0, 0, color=of_rank(rank), label=f"rank {rank}") for rank in range(ranks)]
    figure.legend(handles=handles, loc="outside right center", frameon=False)
    return figure
