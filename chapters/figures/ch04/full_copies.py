"""Figure of what every rank of plain data parallelism holds: the same full bar for each."""

from collections.abc import Mapping

from minidist.show.figures.memory import COLOURS
from minidist.show.figures.subplots import subplot


def draw(bytes_each: Mapping[str, int], billions: float, ranks: int = 4):
    """Return a matplotlib Figure: a bar for each rank, a segment for each kind, and a line at 80 GB.

    Args:
        bytes_each: kind -> bytes per parameter.
        billions: parameters of the model, in billions.
        ranks: number of bars.
    """
    figure, axes = subplot(11, 2.7)
    names, left = [f"rank {rank}" for rank in range(ranks)], 0.0
    for kind, each in bytes_each.items():
        axes.barh(names, billions * each, left=left, color=COLOURS[kind], height=0.7, label=kind)
        left += billions * each
    axes.axvline(80, color="#D55E00", linewidth=2)
    axes.text(88, -0.62, "an 80 GB GPU", color="#D55E00", va="bottom")
    axes.invert_yaxis()
    axes.set_xlabel(f"memory per rank, GB, for {billions:g} billion parameters: the same on 4 ranks as on 4,000")
    axes.legend(frameon=False, ncols=len(bytes_each), loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure
