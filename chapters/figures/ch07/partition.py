"""A model split between its layers: which rank has which stage, and what is sent across each border."""

from collections.abc import Sequence
from typing import NamedTuple

from minidist.show.palette import MEANINGS, ink_on, of_rank

FORWARD, BACKWARD, TIED = (MEANINGS[what] for what in ("forward", "backward", "communication"))
GAP = 0.9  # between two stages, in layers


class Cell(NamedTuple):
    """One layer, the embedding or the head."""

    name: str  # "embedding", "0", "1", ..., "head"
    stage: int
    left: float
    width: float


def cells(layers: Sequence[int]) -> list[Cell]:
    """Return the cells of the embedding, all layers and the head, from left to right.

    Args:
        layers: number of layers of each stage.
    """
    found, left, number = [Cell("embedding", 0, 0.0, 1.5)], 1.5, 0
    for stage, count in enumerate(layers):
        for _ in range(count):
            found.append(Cell(str(number), stage, left, 1.0))
            left, number = left + 1, number + 1
        left += GAP
    return [*found, Cell("head", len(layers) - 1, left - GAP, 1.5)]


def draw(layers: Sequence[int], ranks: int, crossing: str = "B · T · C"):
    """Return a matplotlib Figure: stages in a row, coloured by rank, and the messages across each border.

    Args:
        layers: number of layers of each stage; rank r has stages r, r + ranks, ...
        crossing: the size of a message, for the legend.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, Rectangle

    figure = Figure(figsize=(11, 2.2), layout="constrained")
    axes = figure.subplots()
    row = cells(layers)
    for cell in row:
        colour = of_rank(cell.stage % ranks)
        axes.add_patch(Rectangle((cell.left, 0), cell.width, 1, facecolor=colour, edgecolor="white", linewidth=1.5))
        axes.text(
            cell.left + cell.width / 2, 0.5, cell.name, ha="center", va="center", color=ink_on(colour), fontsize=9
        )
    for stage in range(len(layers)):
        mine = [cell for cell in row if cell.stage == stage]
        right = mine[-1].left + mine[-1].width
        title = f"stage {stage}" + (f", rank {stage % ranks}" if stage % ranks != stage or ranks > 1 else "")
        axes.text((mine[0].left + right) / 2, 1.14, title, ha="center", va="bottom", fontsize=9)
        if stage + 1 < len(layers):
            for height, colour, ends in ((0.72, FORWARD, (right, right + GAP)), (0.28, BACKWARD, (right + GAP, right))):
                arrow = FancyArrowPatch(
                    (ends[0], height), (ends[1], height), arrowstyle="-|>", mutation_scale=13, linewidth=2,
                    color=colour, shrinkA=1, shrinkB=1,
                )  # fmt: skip
                axes.add_patch(arrow)
    end = row[-1].left + row[-1].width
    for x in (0.75, end - 0.75):
        tip = FancyArrowPatch((x, -0.4), (x, 0), arrowstyle="-|>", mutation_scale=11, linewidth=1.6, color=TIED,
                              shrinkA=0, shrinkB=1)  # fmt: skip
        axes.add_patch(tip)
    axes.plot([0.75, end - 0.75], [-0.4, -0.4], color=TIED, linewidth=1.6, solid_capstyle="projecting")
    axes.text(end / 2, -0.5, "tied weight: the gradients of both copies are summed", ha="center", va="top", fontsize=9)
    handles = [
        axes.plot([], [], color=colour, linewidth=2, label=label)[0]
        for colour, label in (
            (FORWARD, f"activations, {crossing} per micro-batch"),
            (BACKWARD, "their gradients, same size"),
            (TIED, "tied weight"),
        )
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    axes.set_xlim(-0.1, end + 0.1)
    axes.set_ylim(-0.95, 1.5)
    axes.axis("off")
    return figure
