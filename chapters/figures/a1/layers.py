"""The layers below a rank's program: all but the last are the same, whatever carries the messages."""

from collections.abc import Sequence
from typing import NamedTuple

from minidist.show.palette import MEANINGS, ink_on

SAME, OTHER = "#F2F2F2", MEANINGS["communication"]


class Layer(NamedTuple):
    """A layer in words. note: where it is, or what it knows."""

    name: str
    note: str


def draw(layers: Sequence[Layer], carriers: Sequence[Layer]):
    """Return a matplotlib Figure: the shared layers from top to bottom, and below them side by side what differs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 0.62 * (len(layers) + 1) + 0.5), layout="constrained")
    axes = figure.subplots()
    for row, layer in enumerate(layers):
        _box(axes, 0, -row, 1, layer, SAME)
    width = 1 / len(carriers)
    for column, layer in enumerate(carriers):
        _box(axes, column * width, -len(layers), width, layer, OTHER)
    axes.set(xlim=(-0.01, 1.01), ylim=(-len(layers) - 0.5, 0.5))
    axes.set_title("grey: the same code; orange: the one part that differs", loc="left", fontsize=10)
    axes.axis("off")
    return figure


def _box(axes, left: float, middle: float, width: float, layer: Layer, colour: str) -> None:
    from matplotlib.patches import Rectangle

    corner = left + 0.004, middle - 0.43
    axes.add_patch(Rectangle(corner, width - 0.008, 0.86, facecolor=colour, edgecolor="none"))
    ink = ink_on(colour)
    axes.text(left + width / 2, middle + 0.16, layer.name, ha="center", va="center", fontsize=10.5, color=ink)
    axes.text(left + width / 2, middle - 0.2, layer.note, ha="center", va="center", fontsize=8.5, color=ink)
