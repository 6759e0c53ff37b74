"""Networks as they are wired: GPUs in their nodes, switches above and below, and a cut through the middle."""

import re
from collections.abc import Mapping

from minidist.plan.cluster.topology import Topology
from minidist.show.palette import MEANINGS, SERIES, ink_on

INSIDE, BETWEEN, GREY = MEANINGS["communication"], MEANINGS["link between nodes"], "#606060"
NODES = (SERIES[0], SERIES[2], SERIES[3], "#8A8A8A")  # of the GPUs of each
STUB = 0.4  # what is drawn of a link around a torus
GAP = 0.7  # between nodes, in widths of a GPU


def positions(topology: Topology) -> dict[str, tuple[float, float]]:
    """Return where to draw each vertex of a cluster or of a two-dimensional torus."""
    places, x, last = {}, 0.0, topology.nodes[0]
    for chip, node in zip(topology.chips, topology.nodes, strict=True):
        if found := re.fullmatch(r"chip(\d+),(\d+)", chip):
            places[chip] = float(found[2]), -float(found[1])
            continue
        x += GAP * (node != last)
        places[chip], last = (x, 0.0), node
        x += 1
    others = dict.fromkeys(vertex for edge in topology.links for vertex in edge if vertex not in places)
    for kind, height in (("switch", -1.0), ("leaf", 1.1), ("spine", 2.1)):
        row = [vertex for vertex in others if kind in vertex]
        for number, vertex in enumerate(row):
            below = [places[a][0] for a, b in topology.links if b == vertex and a in places]
            middle = sum(below) / len(below)
            rails = kind == "leaf" and len(row) > len(set(topology.nodes))
            places[vertex] = ((number + 0.5) * (x - 1) / len(row) if rails else middle), height
    return places


def draw(panels: Mapping[str, Topology], notes: Mapping[str, str]):
    """Draw networks (title -> network), links as thick as the log of their rate, notes below; return a Figure."""
    from math import log10

    from matplotlib.figure import Figure

    figure = Figure(figsize=(min(11, 4.5 * len(panels)), 3.2), layout="constrained")
    least = min(link.bandwidth for topology in panels.values() for link in topology.links.values())
    for axes, (title, topology) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels.items(), strict=True):
        places = positions(topology)
        for (start, end), link in topology.links.items():
            (x0, y0), (x1, y1) = places[start], places[end]
            inside = "switch" in start + end
            width = 1.0 + 1.8 * log10(link.bandwidth / least)
            if start in topology.chips and end in topology.chips and max(abs(x0 - x1), abs(y0 - y1)) > 1:
                x1, y1 = x0 - STUB * _sign(x1 - x0), y0 - STUB * _sign(y1 - y0)
            axes.add_patch(_line((x0, y0), (x1, y1), INSIDE if inside else BETWEEN, width))
        for vertex, (x, y) in places.items():
            if vertex in topology.chips:
                rank = topology.chips.index(vertex)
                colour = NODES[topology.nodes[rank] % len(NODES)]
                axes.plot(x, y, "s", markersize=15, color=colour, zorder=3)
                axes.text(x, y, rank, ha="center", va="center", fontsize=8, color=ink_on(colour), zorder=4)
            else:
                axes.text(x, y, vertex.rpartition(".")[2], ha="center", va="center", fontsize=8, zorder=4,
                          bbox={"boxstyle": "round,pad=0.25", "facecolor": "white", "edgecolor": GREY})  # fmt: skip
        axes.set_title(title, fontsize=10)
        low = min(y for _, y in places.values())
        axes.text(sum(x for x, _ in places.values()) / len(places), low - 0.6, notes[title], ha="center", va="top",
                  fontsize=9)  # fmt: skip
        xs, ys = zip(*places.values(), strict=True)
        axes.set(xlim=(min(xs) - 0.8, max(xs) + 0.8), ylim=(low - 1.3, max(ys) + 0.5))
        axes.axis("off")
    return figure


def _line(start, end, colour: str, width: float):
    from matplotlib.patches import FancyArrowPatch

    return FancyArrowPatch(start, end, arrowstyle="-", color=colour, linewidth=width, zorder=1, shrinkA=0, shrinkB=0)


def _sign(number: float) -> int:
    return (number > 0) - (number < 0)
