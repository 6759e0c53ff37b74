"""Ranks in a mesh of three axes, on nodes: which ranks communicate along which axis, and how much."""

import numpy as np

from minidist.analysis.traffic import along
from minidist.show.palette import AXES, ink_on, of_rank

LITTLE = 0.01  # of the largest flow: smaller ones (the norm and the loss, a few bytes each) get no line


def draw(sent: np.ndarray, shape: tuple[int, int, int], unit: float, name: str):
    """Return a matplotlib Figure: a node for each stage with its replicas, and lines as thick as their traffic.

    Args:
        sent: (N, N), from each rank to each.
        shape: pp, dp, tp.
        unit, name: the legend gives the sum over all ranks, divided by ``unit`` and labelled ``name``.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    pp, dp, tp = shape
    row = 0.75 * tp + 0.55  # of a replica: its ranks are on a slant, so that lines along different axes do not overlap
    wide, high = 0.8 * tp + 2.2, row * dp - 0.55
    figure = Figure(figsize=(11, 1.6 + 0.62 * high), layout="constrained")
    axes = figure.subplots()
    place = {
        rank: (wide * (rank // (dp * tp)) + 0.8 * (rank % tp), -row * (rank // tp % dp) - 0.75 * (rank % tp))
        for rank in range(len(sent))
    }
    for stage in range(pp):
        corner = wide * stage - 0.5, -high + 0.25
        style = "round,pad=0.02,rounding_size=0.2"
        box = FancyBboxPatch(corner, 0.8 * tp + 0.2, high + 0.25, style, facecolor="#F2F2F2", edgecolor="none")
        axes.add_patch(box)
        title = f"node {stage}: stage {stage}"
        axes.text(wide * stage + 0.4 * (tp - 1), 1.15, title, ha="center", va="bottom", fontsize=9, color="#606060")
    flows = along(sent, shape)
    largest = max(flow.max() for flow in flows.values())
    handles = []
    for axis, flow in flows.items():
        both = flow + flow.T
        for one, other in np.argwhere(np.triu(both) > LITTLE * largest):
            bend = 0.0
            if axis == "pp" and other - one != dp * tp:  # past the stages in between
                bend = -0.13 if one // tp < dp / 2 else 0.13
            width = 1 + 5 * both[one, other] / (2 * largest)
            axes.add_patch(_line(place[one], place[other], bend, AXES[axis], width))
        label = f"{axis}: {flow.sum() / unit:,.3g} {name}"
        handles.append(axes.plot([], [], color=AXES[axis], linewidth=3, label=label)[0])
    for rank, (x, y) in place.items():
        colour = of_rank(rank // (dp * tp))
        axes.plot(x, y, "o", markersize=18, color=colour, zorder=3)
        axes.text(x, y, rank, ha="center", va="center", color=ink_on(colour), fontsize=9, zorder=4)
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    axes.set_xlim(-0.7, wide * (pp - 1) + 0.8 * tp)
    axes.set_ylim(-high - 0.45, 1.55)
    axes.axis("off")
    return figure


def _line(start, end, bend: float, colour: str, width: float):
    from matplotlib.patches import FancyArrowPatch

    return FancyArrowPatch(
        start, end, connectionstyle=f"arc3,rad={bend}", arrowstyle="-", color=colour, linewidth=width,
        linestyle=(0, (4, 2)) if bend else "-", shrinkA=9, shrinkB=9, zorder=2,
    )  # fmt: skip
