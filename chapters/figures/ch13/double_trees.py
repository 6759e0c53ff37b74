"""Two binary trees over the same ranks: who is a leaf in one is inner in the other."""

from collections.abc import Sequence

from minidist.show.palette import SERIES, ink_on, on_paper

INNER, LEAF, BOTH = SERIES[0], "#D9D9D9", on_paper("wrong")


def depths(parents: Sequence[int | None]) -> list[int]:
    """Return how far each rank is below the root."""

    def depth(rank: int) -> int:
        return 0 if parents[rank] is None else 1 + depth(parents[rank])

    return [depth(rank) for rank in range(len(parents))]


def draw(trees: tuple[Sequence[int | None], Sequence[int | None]]):
    """Return a matplotlib Figure: both trees with the ranks in one order from left to right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.6), layout="constrained")
    inner = [set(parents) - {None} for parents in trees]
    words = ("first tree: the first half of the buffer", "second tree: the other half")
    for axes, parents, title in zip(figure.subplots(1, 2), trees, words, strict=True):
        levels = depths(parents)
        for rank, parent in enumerate(parents):
            if parent is not None:
                axes.plot([rank, parent], [-levels[rank], -levels[parent]], color="#606060", lw=1.5, zorder=1)
            passes_on = rank in parents
            colour = BOTH if rank in inner[0] & inner[1] else INNER if passes_on else LEAF
            axes.plot(rank, -levels[rank], "o", markersize=18, color=colour, zorder=2)
            axes.text(rank, -levels[rank], rank, ha="center", va="center", fontsize=9, color=ink_on(colour), zorder=3)
        axes.set_title(title, fontsize=10)
        axes.set(xlim=(-0.6, len(parents) - 0.4), ylim=(-max(levels) - 0.5, 0.5))
        axes.axis("off")
    figure.supxlabel("blue: passes on (inner); grey: a leaf", fontsize=9)
    return figure
