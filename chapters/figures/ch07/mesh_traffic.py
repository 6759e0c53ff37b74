"""Ranks in a mesh of three axes, on machines: who talks to whom along which axis, and how much."""

from collections.abc import Sequence

import numpy as np

from minidist.show.palette import ink_on, of_rank

COLOURS = {"pp": "#0072B2", "dp": "#009E73", "tp": "#E69F00"}
LITTLE = 0.01  # of the largest flow: below it no line (the norm and the loss, a few bytes each)


def along(sent: np.ndarray, shape: Sequence[int], names: Sequence[str] = ("pp", "dp", "tp")) -> dict[str, np.ndarray]:
    """For each axis, the part of what was sent that went between ranks that differ along that axis alone.

    Args:
        sent: (N, N), from each rank to each.
        shape: of the mesh; the last axis changes fastest.
    """
    places = np.stack(np.unravel_index(np.arange(len(sent)), tuple(shape)), axis=1)  # (N, axes)
    differs = places[:, None] != places[None]  # (N, N, axes)
    return {name: sent * (differs[..., i] & (differs.sum(axis=-1) == 1)) for i, name in enumerate(names)}


def draw(sent: np.ndarray, shape: tuple[int, int, int], unit: float, name: str):
    """A matplotlib Figure: a machine for each stage, in it its replicas; lines as thick as what goes along them.

    Args:
        sent: (N, N), from each rank to each.
        shape: pp, dp, tp.
        unit, name: the legend gives the sum over all ranks in ``unit``, called ``name``.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    pp, dp, tp = shape
    row = 0.75 * tp + 0.55  # of a replica: its ranks stand on a slant, so that lines along any axis are apart
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
        title = f"machine {stage}: stage {stage}"
        axes.text(wide * stage + 0.4 * (tp - 1), 1.15, title, ha="center", va="bottom", fontsize=9, color="#606060")
    flows = along(sent, shape)
    largest = max(flow.max() for flow in flows.values())
    handles = []
    for axis, flow in flows.items():
        both = flow + flow.T
        for one, other in np.argwhere(np.triu(both) > LITTLE * largest):
            bend = 0.0
            if axis == "pp" and other - one != dp * tp:  # over the stages in between
                bend = -0.13 if one // tp < dp / 2 else 0.13
            width = 1 + 5 * both[one, other] / (2 * largest)
            axes.add_patch(_line(place[one], place[other], bend, COLOURS[axis], width))
        label = f"{axis}: {flow.sum() / unit:,.3g} {name}"
        handles.append(axes.plot([], [], color=COLOURS[axis], linewidth=3, label=label)[0])
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
