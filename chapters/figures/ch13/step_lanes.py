"""Figure of what every rank does in one step, on one time axis for several networks: computing, or waiting."""

from collections.abc import Mapping

from minidist.analysis.replay import Replayed
from minidist.analysis.report import bounds, clipped
from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS, on_paper

COMPUTING, WAITING = MEANINGS["computing"], on_paper("idle")


def draw(runs: Mapping[str, Replayed]):
    """Draw each run's last step: a panel for each network, a lane for each rank; return a matplotlib Figure."""
    from matplotlib.patches import Rectangle

    spans = {title: bounds(replayed, None) for title, replayed in runs.items()}
    longest = max(end - start for start, end in spans.values())
    ranks = max(len(replayed.kernels) for replayed in runs.values())
    figure, grid = subplots(11, (0.28 * ranks + 0.5) * len(runs) + 0.6, len(runs), 1, sharex=True)
    for axes, (title, replayed) in zip(grid, runs.items(), strict=True):
        start, end = spans[title]
        for rank, kernels in enumerate(replayed.kernels):
            axes.barh(rank, 1e6 * (end - start), height=0.75, color=WAITING)
            pieces = [(1e6 * (low - start), 1e6 * (high - low)) for low, high in clipped(kernels, start, end)]
            axes.broken_barh(pieces, (rank - 0.375, 0.75), color=COMPUTING, lw=0)
        axes.set_yticks(range(len(replayed.kernels)), [f"rank {n}" for n in range(len(replayed.kernels))], fontsize=8)
        axes.invert_yaxis()
        axes.set_title(f"{title}: {1e6 * (end - start):.0f} µs", fontsize=10, loc="left")
        axes.set_xlim(0, 1e6 * longest * 1.02)
    figure.axes[-1].set_xlabel("microseconds on the cluster's clock")
    handles = [
        Rectangle((0, 0), 1, 1, color=colour, label=word)
        for colour, word in ((COMPUTING, "computing"), (WAITING, "waiting"))
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False, fontsize=9)
    return figure
