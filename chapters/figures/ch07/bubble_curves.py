"""The bubble of GPipe and 1F1B over the number of micro-batches."""

from collections.abc import Sequence

import numpy as np

from minidist.show.figures.subplots import subplot
from minidist.show.palette import of_rank


def draw(pipelines: Sequence[int], limit: float):
    """Return a matplotlib Figure: a curve for each number of ranks, and a dot where it falls to the limit.

    Args:
        pipelines: numbers of ranks.
        limit: share of the time, such as 0.1.
    """
    figure, axes = subplot(11, 2.9)
    counts = np.unique(np.geomspace(1, 256, 60).astype(int))
    for place, p in enumerate(pipelines):
        axes.plot(counts, 100 * (p - 1) / (counts + p - 1), color=of_rank(place), label=f"p = {p}")
        enough = round((p - 1) * (1 - limit) / limit)
        axes.plot(enough, 100 * limit, "o", color=of_rank(place))
        axes.annotate(f"m = {enough}", (enough, 100 * limit), (4, 5), textcoords="offset points", fontsize=9)
    axes.axhline(100 * limit, color="#B0B0B0", linewidth=1, linestyle="--")
    axes.set(xscale="log", xlabel="micro-batches m", ylabel="bubble, %", ylim=(0, 100), xlim=(1, 256))
    axes.set_xticks([1, 4, 16, 64, 256], ["1", "4", "16", "64", "256"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return figure
