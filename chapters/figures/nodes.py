"""Ranks on machines, and how much goes along each wire: what travels inside a machine, and what between machines."""

from collections.abc import Mapping

import numpy as np

from minidist.show.palette import ink_on, of_rank

INSIDE, ACROSS = "#E69F00", "#D55E00"
LITTLE = 0.005  # of the largest flow: below it no arrow


def inside_and_across(sent: np.ndarray, in_machine: int) -> tuple[int, int]:
    """What all ranks together sent to ranks of their own machine, and to those of others.

    Args:
        sent: (N, N), from each rank to each.
        in_machine: ranks in one machine: the first so many are in the first.
    """
    machine = np.arange(len(sent)) // in_machine
    inside = machine[:, None] == machine
    return int(sent[inside].sum()), int(sent[~inside].sum())


def draw(panels: Mapping[str, tuple[np.ndarray, int]], in_machine: int, unit: float, name: str):
    """A matplotlib Figure: side by side, machines as boxes, ranks as discs, arrows as thick as what goes along them.

    Args:
        panels: title -> (sent, shards): what each rank sent to each, (N, N), and how many shards a copy is cut into;
            ranks that hold the same shard have one colour.
        unit, name: arrows are labelled with their flow over ``unit``, in ``name``.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.1), layout="constrained")
    largest = max(sent.max() for sent, _ in panels.values())
    for axes, (title, (sent, shards)) in zip(figure.subplots(1, len(panels)), panels.items(), strict=True):
        place = {rank: (2 * (rank % in_machine), -2.3 * (rank // in_machine)) for rank in range(len(sent))}
        for machine in range(len(sent) // in_machine):
            low = -2.3 * machine
            box = (-0.75, low - 0.75), 2 * in_machine - 0.5, 1.65
            axes.add_patch(_box(*box))
            axes.text(-0.6, low + 0.07, f"machine {machine}", fontsize=8, color="#606060", va="center", rotation=90)
        for source, target in np.argwhere(sent > LITTLE * largest):
            inside = source // in_machine == target // in_machine
            far = abs(place[source][0] - place[target][0]) > 2
            bend = (0.22 if inside else 0.1) if far else 0.25
            colour = INSIDE if inside else ACROSS
            width = 0.8 + 3.2 * sent[source, target] / largest
            axes.add_patch(_arrow(place[source], place[target], bend, colour, width))
        for rank, (x, y) in place.items():
            colour = of_rank(rank % shards)
            axes.plot(x, y, "o", markersize=19, color=colour, zorder=3)
            axes.text(x, y, rank, ha="center", va="center", color=ink_on(colour), fontsize=10, zorder=4)
        inside, across = (amount / unit for amount in inside_and_across(sent, in_machine))
        note = f"all ranks together: inside {inside:.3g} {name}, between {across:.3g} {name}"
        axes.text(in_machine - 1, -2.3 * (len(sent) // in_machine - 1) - 1.0, note, ha="center", va="top", fontsize=9)
        axes.set_xlim(-0.9, 2 * in_machine - 1.1)
        axes.set_ylim(-2.3 * (len(sent) // in_machine - 1) - 1.4, 1.0)
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
