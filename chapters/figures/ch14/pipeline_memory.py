"""Figure of what each rank of a pipeline holds: activations, and everything else."""

from collections.abc import Sequence

from minidist.plan.memory import Memory
from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, PAPER


def draw(memories: Sequence[Memory], limit: float):
    """Draw a bar for each rank of the pipeline, and a line at ``limit`` bytes; return a matplotlib Figure."""
    figure, axes = subplot(9, 2.7)
    ranks, total = range(len(memories)), [one.total / 1e9 for one in memories]
    axes.bar(ranks, total, color=MEANINGS["optimizer state"], label="states and assumptions")
    axes.bar(ranks, [one.activations / 1e9 for one in memories], color=MEANINGS["activations"], label="activations")
    axes.axhline(limit / 1e9, color=PAPER["wrong"], label=f"{limit / 1e9:.0f} GB")
    axes.set(xticks=ranks, ylim=(0, 1.35 * max(total)))
    axes.set_xlabel("rank of the pipeline", fontsize=9)
    axes.set_ylabel("GB", fontsize=9)
    axes.legend(frameon=False, ncols=3, fontsize=9)
    return figure
