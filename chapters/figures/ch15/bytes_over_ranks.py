"""What each rank sends in a step over the number of ranks, a curve for each method."""

from collections.abc import Mapping, Sequence

from minidist.show.palette import SERIES


def draw(ranks: Sequence[int], sent: Mapping[str, Sequence[float]]):
    """Draw the bytes of each method; return a matplotlib Figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    axes = figure.subplots()
    for place, (method, nbytes) in enumerate(sent.items()):
        axes.plot(ranks, [one / 1e6 for one in nbytes], ".-", color=SERIES[place], label=method)
    axes.set(xscale="log", yscale="log")
    axes.set_xticks(ranks, ranks)
    axes.minorticks_off()
    axes.set_xlabel("ranks", fontsize=9)
    axes.set_ylabel("MB that each sends in a step", fontsize=9)
    axes.legend(frameon=False, fontsize=9, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    return figure
