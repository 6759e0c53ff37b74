"""The ranks of a mesh on their machines: one picture for each axis, in which the ranks of a group have one colour."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from minidist.show.palette import ink_on, of_rank


def lines(shape: Sequence[int], dim: int) -> np.ndarray:
    """The groups along one dimension, (groups, ranks of each): the last dimension of the mesh changes fastest."""
    mesh = np.arange(np.prod(shape)).reshape(shape)
    return np.moveaxis(mesh, dim, -1).reshape(-1, shape[dim])


def inside(groups: np.ndarray, in_machine: int) -> int:
    """How many of the groups have all of their ranks in one machine, machines being filled in the order of ranks."""
    machine = groups // in_machine
    return int((machine == machine[:, :1]).all(axis=1).sum())


def draw(shape: Sequence[int], names: Sequence[str], in_machine: int):
    """A matplotlib Figure: for each axis all ranks, a row for each machine; lines join the ranks of a group.

    Args:
        shape: of the mesh; the last axis changes fastest.
        names: of the axes.
        in_machine: ranks in one machine.
    """
    from matplotlib.figure import Figure

    count = int(np.prod(shape))
    machines = count // in_machine
    figure = Figure(figsize=(11, 1.0 + 0.62 * machines), layout="constrained")
    place = {rank: (rank % in_machine, -(rank // in_machine)) for rank in range(count)}
    for dim, (axes, name) in enumerate(zip(figure.subplots(1, len(shape)), names, strict=True)):
        for machine in range(machines):
            axes.add_patch(_box((-0.36, -machine - 0.34), in_machine - 0.28, 0.68))
        groups = lines(shape, dim)
        for number, group in enumerate(groups):
            colour = of_rank(number)
            for one, other in pairwise(group):
                axes.add_patch(_line(place[one], place[other], colour))
            for rank in group:
                x, y = place[rank]
                axes.plot(x, y, "o", markersize=17, color=colour, zorder=3)
                axes.text(x, y, rank, ha="center", va="center", color=ink_on(colour), fontsize=9, zorder=4)
        one_machine = inside(groups, in_machine)
        where = {len(groups): "all inside a machine", 0: "all between machines"}
        note = where.get(one_machine, f"{one_machine} inside a machine")
        axes.set_title(f"{name}={shape[dim]}: {len(groups)} groups, {note}", fontsize=10)
        axes.set(xlim=(-0.75, in_machine - 0.25), ylim=(-machines + 0.45, 0.55), aspect="equal")
        axes.axis("off")
    return figure


def _box(corner, width: float, height: float):
    from matplotlib.patches import FancyBboxPatch

    style = "round,pad=0.02,rounding_size=0.15"
    return FancyBboxPatch(corner, width, height, style, facecolor="#F2F2F2", edgecolor="none")


def _line(start, end, colour: str):
    """Straight between neighbours, else bent so that it does not run through those in between."""
    from matplotlib.patches import FancyArrowPatch

    far = max(abs(start[0] - end[0]), abs(start[1] - end[1])) > 1
    bend = 0.3 if far else 0.0
    return FancyArrowPatch(
        start, end, connectionstyle=f"arc3,rad={bend}", arrowstyle="-", color=colour, linewidth=2.5,
        shrinkA=6, shrinkB=6, zorder=2,
    )  # fmt: skip
