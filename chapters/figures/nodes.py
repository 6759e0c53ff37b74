"""Ranks on nodes, and how much each sends to each: the traffic inside nodes and between them."""

from collections.abc import Mapping

import numpy as np

from minidist.analysis.traffic import inside_and_between
from minidist.show.palette import MEANINGS, ink_on, of_rank

INSIDE, BETWEEN = MEANINGS["communication"], MEANINGS["link between nodes"]
LITTLE = 0.005  # of the largest flow: smaller ones get no arrow


def draw(panels: Mapping[str, tuple[np.ndarray, int]], ranks_per_node: int, unit: float, name: str):
    """Return a matplotlib Figure: for each panel, nodes as boxes, ranks as discs, and arrows as thick as their traffic.

    Args:
        panels: title -> (sent, shards): what each rank sent to each, (N, N), and into how many shards a copy is split;
            ranks that hold the same shard have one colour.
        ranks_per_node: nodes are filled in the order of ranks.
        unit, name: the traffic below each panel is divided by ``unit`` and labelled ``name``.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.1), layout="constrained")
    largest = max(sent.max() for sent, _ in panels.values())
    for axes, (title, (sent, shards)) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        place = {rank: (2 * (rank % ranks_per_node), -2.3 * (rank // ranks_per_node)) for rank in range(len(sent))}
        for node in range(len(sent) // ranks_per_node):
            low = -2.3 * node
            box = (-0.75, low - 0.75), 2 * ranks_per_node - 0.5, 1.65
            axes.add_patch(_box(*box))
            axes.text(-0.6, low + 0.07, f"node {node}", fontsize=8, color="#606060", va="center", rotation=90)
        for source, target in np.argwhere(sent > LITTLE * largest):
            inside = source // ranks_per_node == target // ranks_per_node
            far = abs(place[source][0] - place[target][0]) > 2
            bend = (0.22 if inside else 0.1) if far else 0.25
            colour = INSIDE if inside else BETWEEN
            width = 0.8 + 3.2 * sent[source, target] / largest
            axes.add_patch(_arrow(place[source], place[target], bend, colour, width))
        for rank, (x, y) in place.items():
            colour = of_rank(rank % shards)
            axes.plot(x, y, "o", markersize=19, color=colour, zorder=3)
            axes.text(x, y, rank, ha="center", va="center", color=ink_on(colour), fontsize=10, zorder=4)
        inside, between = (amount / unit for amount in inside_and_between(sent, ranks_per_node))
        note = f"all ranks together: {inside:.3g} {name} inside nodes, {between:.3g} {name} between"
        axes.text(
            ranks_per_node - 1, -2.3 * (len(sent) // ranks_per_node - 1) - 1.0, note, ha="center", va="top", fontsize=9
        )
        axes.set_xlim(-0.9, 2 * ranks_per_node - 1.1)
        axes.set_ylim(-2.3 * (len(sent) // ranks_per_node - 1) - 1.4, 1.0)
        axes.axis("off")
        axes.set_title(title, fontsize=10)
    return figure


def _box(corner, width: float, height: float):
    from matplotlib.patches import FancyBboxPatch

    return FancyBboxPatch(
        corner, width, height, "round,pad=0.02,rounding_size=0.2", facecolor="#F2F2F2", edgecolor="none"
    )


def _arrow(start, end, bend: float, colour: str, width: float):
    from matplotlib.patches import FancyArrowPatch

    style = f"arc3,rad={bend}"
    return FancyArrowPatch(
        start, end, connectionstyle=style, arrowstyle="-|>", mutation_scale=11, color=colour, linewidth=width,
        shrinkA=11, shrinkB=11, zorder=2,
    )  # fmt: skip
