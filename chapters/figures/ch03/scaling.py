"""Times of all-reduces by the number of ranks, for arrays of different sizes."""

from collections.abc import Mapping, Sequence

from figures.ch03.costs import COLOURS
from minidist.show.figures.subplots import subplots


def draw(ranks: Sequence[int], panels: Mapping[str, Mapping[str, Sequence[float]]]):
    """Return a matplotlib Figure with one plot for each size.

    Args:
        ranks: numbers of ranks, powers of two.
        panels: size in words -> {algorithm: seconds, for each number of ranks}.
    """
    figure, grid = subplots(10, 3.4, 1, len(panels))
    for axes, (size, algorithms) in zip(grid, panels.items(), strict=True):
        for name, seconds in algorithms.items():
            style = "s--" if name == "halving_doubling" else "o-"
            axes.plot(ranks, [1e3 * t for t in seconds], style, color=COLOURS[name], label=name)
        axes.set(title=f"all-reduce of {size}", xlabel="ranks", ylabel="milliseconds", ylim=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks, map(str, ranks))
    axes.legend(frameon=False)
    return figure
