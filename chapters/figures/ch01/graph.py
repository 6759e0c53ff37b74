"""An autograd graph and the backward pass through it: the order of operations, and the gradient along each edge."""

from dataclasses import dataclass, field

from minidist.nn.modes import Mode
from minidist.nn.tensor import Context
from minidist.show.palette import MEANINGS

NODE, LEAF, FORWARD, BACKWARD = MEANINGS["forward"], "#E8E8E8", "#B0B0B0", MEANINGS["backward"]
FONT = 9


@dataclass
class Graph:
    """Operations and leaves, numbered from 0, the last operation first. An edge goes from a source to its user."""

    names: list[str] = field(default_factory=list)
    shapes: list[tuple[int, ...]] = field(default_factory=list)
    leaves: set[int] = field(default_factory=set)
    edges: list[tuple[int, int]] = field(default_factory=list)  # one for each use
    order: list[int] = field(default_factory=list)  # the operations in the order of backward
    gradients: list = field(default_factory=list)  # the gradient along each edge, in the order of ``edges``

    def depths(self) -> list[int]:
        """Return the length of the longest path from each to the end: a source is above all its users."""
        depth = [0] * len(self.names)
        for _ in self.names:
            for source, user in self.edges:
                depth[source] = max(depth[source], depth[user] + 1)
        return depth


def capture(output, names: dict | None = None, backward: bool = False) -> Graph:
    """Return the graph behind a tensor.

    ``names`` maps leaves to names; without it, parameters have their own. With ``backward``, ``output.backward()`` runs
    too, and its order and gradients are recorded.
    """
    graph, found = Graph(), [output.grad_fn]
    numbers = {output.grad_fn: 0}
    edge_numbers = {}
    for node in found:  # grows during the loop
        is_leaf = not hasattr(node, "sources")
        graph.names.append((names or {}).get(node, getattr(node, "name", "")) if is_leaf else node.name)
        graph.shapes.append(node.shape)
        if is_leaf:
            graph.leaves.add(numbers[node])
            continue
        for argument, source in enumerate(node.sources):
            if source is not None:
                if source not in numbers:
                    numbers[source] = len(found)
                    found.append(source)
                edge_numbers[node, argument] = len(graph.edges)
                graph.edges.append((numbers[source], numbers[node]))
    if backward:
        graph.gradients = [None] * len(graph.edges)
        for node in found:
            if isinstance(node, Context):
                node.modes = (*node.modes, _Recording(graph, numbers, edge_numbers))
        output.backward()
    return graph


class _Recording(Mode):
    """Records which operation runs in backward, and what it returns."""

    def __init__(self, graph: Graph, numbers: dict, edge_numbers: dict) -> None:
        self.graph, self.numbers, self.edge_numbers = graph, numbers, edge_numbers

    def after_backward(self, ctx, gradient, found):
        self.graph.order.append(self.numbers[ctx])
        for argument, contribution in enumerate(found):
            if (ctx, argument) in self.edge_numbers:
                self.graph.gradients[self.edge_numbers[ctx, argument]] = contribution


def draw(graph: Graph, title: str = "", row: float = 0.5):
    """Return a matplotlib Figure: forward runs downwards, and the numbers give the order of backward.

    Each edge shows its gradient if that is a scalar. ``row`` is the height of a row in inches.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, FancyBboxPatch
    from matplotlib.textpath import TextPath

    labels = list(graph.names)
    for number in set(range(len(labels))) - graph.leaves:
        labels[number] += f"  {graph.shapes[number]}" if graph.shapes[number] else ""
    widths = [TextPath((0, 0), label, size=FONT).get_extents().width / 72 + 0.16 for label in labels]  # inches
    places = _places(graph, widths, row)
    left = min(x - w / 2 for (x, _), w in zip(places, widths, strict=True)) - 0.2
    right = max(x + w / 2 for (x, _), w in zip(places, widths, strict=True)) + 0.5
    bottom, top = min(y for _, y in places) - 0.3, 0.6
    figure = Figure(figsize=(right - left, top - bottom))
    axes = figure.add_axes((0, 0, 1, 1), xlim=(left, right), ylim=(bottom, top))
    axes.axis("off")
    axes.text(left + 0.05, top - 0.2, title, fontsize=11)
    boxes = []
    for number, ((x, y), width) in enumerate(zip(places, widths, strict=True)):
        colour = LEAF if number in graph.leaves else NODE
        box = FancyBboxPatch((x - width / 2, y - 0.12), width, 0.24, "round,pad=0,rounding_size=0.06", color=colour)
        boxes.append(axes.add_patch(box))
        axes.text(x, y, labels[number], ha="center", va="center_baseline", fontsize=FONT)
        if number in graph.order:
            step = str(graph.order.index(number) + 1)
            axes.text(x + width / 2 + 0.04, y + 0.1, step, va="center", fontsize=8, color=BACKWARD, weight="bold")
    for number, (source, user) in enumerate(graph.edges):
        bend = _bend(graph.edges, number, places)
        ends = {"patchA": boxes[source], "patchB": boxes[user], "shrinkA": 1, "shrinkB": 1}
        style = {"connectionstyle": f"arc3,rad={bend}", "arrowstyle": "-|>", "mutation_scale": 9, "linewidth": 1.2}
        arrow = FancyArrowPatch(places[source], places[user], **ends, **style, color=FORWARD, zorder=0.5)
        axes.add_patch(arrow)
        if graph.gradients and graph.gradients[number].size == 1:
            (x0, y0), (x1, y1) = places[source], places[user]
            x, y = (x0 + x1 + bend * (y1 - y0)) / 2, (y0 + y1 - bend * (x1 - x0)) / 2  # the middle of the arc
            axes.text(x, y, f"{graph.gradients[number].item():g}", fontsize=10, color=BACKWARD, ha="center",
                      va="center", bbox={"facecolor": "white", "edgecolor": "none", "pad": 1})  # fmt: skip
    return figure


def _places(graph: Graph, widths: list[float], row: float) -> list[tuple[float, float]]:
    """Return the middle of each box: operations in rows by depth, and to their right what is used at several depths."""
    depth = graph.depths()
    deepest = max(depth[n] for n in range(len(depth)) if n not in graph.leaves)
    trunk = max(widths[n] for n in range(len(widths)) if n not in graph.leaves)
    left_end, right_end, places = {}, {}, []
    for number, width in enumerate(widths):
        levels = [depth[user] for source, user in graph.edges if source == number]
        level = max(levels) if number in graph.leaves else depth[number]
        first = not any(level == depth[n] for n in range(number) if n not in graph.leaves)
        if number not in graph.leaves and first:
            x = 0.0
        elif number in graph.leaves and len(set(levels)) == 1:
            x = left_end.get(level, -trunk / 2) - 0.2 - width / 2
            left_end[level] = x - width / 2
        else:
            x = right_end[level] + 0.2 + width / 2 if level in right_end else trunk / 2 + 1.1 + max(widths) / 2
            right_end[level] = x + width / 2
        places.append((x, (level - deepest) * row))
    return places


def _bend(edges: list[tuple[int, int]], number: int, places: list[tuple[float, float]]) -> float:
    """Return how far an arrow bends around boxes between its ends, and away from other arrows with the same ends."""
    source, user = edges[number]
    (x0, y0), (x1, y1) = places[source], places[user]
    twins = [n for n, edge in enumerate(edges) if edge == edges[number]]
    apart = 0.4 * (twins.index(number) - (len(twins) - 1) / 2)
    between = any(x == x0 == x1 and y1 < y < y0 for x, y in places)
    return apart - (2.5 / (y0 - y1) if between else 0)
