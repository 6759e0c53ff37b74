"""Figure of the parameters, gradients and optimizer state that each rank holds, as in the paper on ZeRO (Rajbhandari et
al., 2020, figure 1), from the reports of real ranks."""

from collections.abc import Mapping, Sequence

from minidist.show.figures.memory import COLOURS
from minidist.show.figures.subplots import subplots

KINDS = ("parameters", "gradients", "optimizer")
Held = Mapping[str, tuple[int, int]]  # kind -> (first element, end)


def share(ranks: Sequence[Held], kind: str, size: int) -> float:
    """Return the share of a kind that a rank holds, averaged over ranks: 1 for all of it, 1 / N for equal shards."""
    return sum(stop - start for start, stop in (rank[kind] for rank in ranks)) / (len(ranks) * size)


def draw(stages: Mapping[str, Sequence[Held]], size: int):
    """Return a matplotlib Figure: a panel for each stage, a row for each rank, a box for each kind, filled where held.

    Args:
        stages: title -> what each rank holds.
        size: total number of elements.
    """
    ranks = len(next(iter(stages.values())))
    figure, grid = subplots(11, 1.0 + 0.33 * ranks, 1, len(stages))
    for axes, (title, held) in zip(grid, stages.items(), strict=True):
        for rank, kinds in enumerate(held):
            for column, kind in enumerate(KINDS):
                left, (start, stop) = 1.1 * column, kinds[kind]
                axes.barh(rank, (stop - start) / size, 0.7, left + start / size, color=COLOURS[kind])
                axes.barh(rank, 1, 0.7, left, color="none", edgecolor="#B0B0B0", linewidth=0.7)
        axes.set_ylim(ranks - 0.4, -0.6)
        first = axes is figure.axes[0]
        axes.set_yticks(range(ranks), [f"rank {rank}" if first else "" for rank in range(ranks)])
        axes.set_xticks(
            [1.1 * column + 0.5 for column in range(len(KINDS))], [f"{share(held, k, size):.4g}" for k in KINDS]
        )
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        axes.set_title(title, fontsize=10)
    handles = [figure.axes[0].barh(0, 0, color=COLOURS[kind], label=kind) for kind in KINDS]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(KINDS), frameon=False)
    return figure
