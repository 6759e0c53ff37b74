"""Times of all-reduces by the number of ranks, for arrays of different sizes."""

from collections.abc import Mapping, Sequence

from figures.ch03.costs import COLOURS


def draw(ranks: Sequence[int], panels: Mapping[str, Mapping[str, Sequence[float]]]):
    """Return a matplotlib Figure with one plot for each size.

    Args:
        ranks: numbers of ranks, powers of two.
        panels: size in words -> {algorithm: seconds, for each number of ranks}.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.4), layout="constrained")
    for axes, (size, algorithms) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        for name, seconds in algorithms.items():
            style = "s--" if name == "halving_doubling" else "o-"
            axes.plot(ranks, [1e3 * t for t in seconds], style, color=COLOURS[name], label=name)
        axes.set(title=f"all-reduce of {size}", xlabel="ranks", ylabel="milliseconds", ylim=0)
        axes.set_xscale("log", base=2)
        axes.set_xticks(ranks, map(str, ranks))
        axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False)
    return figure
