"""The ranks of a mesh on their nodes: a picture for each axis, in which the ranks of a group have one colour."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from minidist.comm.mesh import mesh_groups
from minidist.show.palette import ink_on, of_rank


def groups_of(shape: Sequence[int], dim: int) -> np.ndarray:
    """Return the groups along one dimension of a mesh: (groups, ranks per group)."""
    return np.array(mesh_groups(tuple(shape), dim))


def within_a_node(groups: np.ndarray, ranks_per_node: int) -> int:
    """Count the groups that have all of their ranks in one node; nodes are filled in the order of ranks."""
    node = groups // ranks_per_node
    return int((node == node[:, :1]).all(axis=1).sum())


def draw(shape: Sequence[int], names: Sequence[str], ranks_per_node: int):
    """Return a matplotlib Figure: for each axis all ranks, in a row for each node; lines join the ranks of a group.

    Args:
        shape: of the mesh; the last axis changes fastest.
        names: of the axes.
        ranks_per_node: ranks in one node.
    """
    from matplotlib.figure import Figure

    count = int(np.prod(shape))
    nodes = count // ranks_per_node
    figure = Figure(figsize=(11, 1.0 + 0.62 * nodes), layout="constrained")
    place = {rank: (rank % ranks_per_node, -(rank // ranks_per_node)) for rank in range(count)}
    for dim, (axes, name) in enumerate(zip(figure.subplots(1, len(shape)), names, strict=True)):
        for node in range(nodes):
            axes.add_patch(_box((-0.36, -node - 0.34), ranks_per_node - 0.28, 0.68))
        groups = groups_of(shape, dim)
        for number, group in enumerate(groups):
            colour = of_rank(number)
            for one, other in pairwise(group):
                axes.add_patch(_line(place[one], place[other], colour))
            for rank in group:
                x, y = place[rank]
                axes.plot(x, y, "o", markersize=17, color=colour, zorder=3)
                axes.text(x, y, rank, ha="center", va="center", color=ink_on(colour), fontsize=9, zorder=4)
        in_one = within_a_node(groups, ranks_per_node)
        where = {len(groups): "all inside a node", 0: "all between nodes"}
        note = where.get(in_one, f"{in_one} inside a node")
        axes.set_title(f"{name}={shape[dim]}: {len(groups)} groups, {note}", fontsize=10)
        axes.set(xlim=(-0.75, ranks_per_node - 0.25), ylim=(-nodes + 0.45, 0.55), aspect="equal")
        axes.axis("off")
    return figure


def _box(corner, width: float, height: float):
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0.02,rounding_size=0.15"
    return FancyBboxPatch(corner, width, height, style, facecolor="#F2F2F2", edgecolor="none")


def _line(start, end, colour: str):
    """Return a line: straight between neighbours, else bent around the ranks in between."""
    from matplotlib.patches import FancyArrowPatch

    far = max(abs(start[0] - end[0]), abs(start[1] - end[1])) > 1
    bend = 0.3 if far else 0.0
    return FancyArrowPatch(
        start, end, connectionstyle=f"arc3,rad={bend}", arrowstyle="-", color=colour, linewidth=2.5,
        shrinkA=6, shrinkB=6, zorder=2,
    )  # fmt: skip
