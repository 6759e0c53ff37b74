"""Seconds of compute and of all-reduces per micro-batch, over the number of tensor-parallel ranks."""

from collections.abc import Sequence

from minidist.show.figures.subplots import subplot


def draw(
    ranks: Sequence[int],
    compute: Sequence[float],
    nodes: Sequence[float],
    between: Sequence[float],
    inside: Sequence[float],
):
    """Return a matplotlib Figure: four curves on logarithmic axes.

    Args:
        ranks: sizes of the tensor-parallel group.
        compute: seconds of compute.
        nodes, between, inside: seconds of all-reduces, with nodes of 8 GPUs, between nodes only, and in one large node.
    """
    figure, axes = subplot(11, 3.2)
    axes.plot(ranks, compute, "o-", color="#0072B2", label="compute, 1/N per rank")
    axes.plot(ranks, nodes, "o-", color="#D55E00", label="all-reduces, nodes of 8 GPUs")
    axes.plot(ranks, between, "--", color="#E69F00", label="all-reduces, InfiniBand only")
    axes.plot(ranks, inside, "--", color="#009E73", label="all-reduces, NVLink only (one large node)")
    axes.axvspan(8.6, 145, color="#F2F2F2", zorder=0)
    axes.text(9, 0.16, "beyond a node of 8", color="#606060")
    axes.set(xscale="log", yscale="log", xlim=(1.9, 145), ylim=(0.12, 60))
    axes.set(xlabel="ranks in a tp group", ylabel="seconds per micro-batch")
    axes.set_xticks(ranks, ranks)
    axes.set_yticks([0.2, 1, 5, 25], ["0.2", "1", "5", "25"])
    axes.minorticks_off()
    axes.legend(frameon=False)
    return figure
