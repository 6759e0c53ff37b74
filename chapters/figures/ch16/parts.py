"""The weights of one block, matrix by matrix: a bar for each model."""

from collections.abc import Mapping

from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, ink_on

COLOURS = {
    "queries": MEANINGS["queries"],
    "keys, values": MEANINGS["keys"],
    "out": MEANINGS["attention"],
    "in": MEANINGS["parameters"],
    "gate": MEANINGS["gradients"],
    "up": MEANINGS["parameters"],
    "down": MEANINGS["elementwise"],
}


def draw(blocks: Mapping[str, Mapping[str, int]], unit: int, name: str):
    """Return a matplotlib Figure: a bar for each block, a segment for each of its matrices.

    Args:
        blocks: title -> matrix, one of COLOURS -> its weights.
        unit, name: weights are divided by ``unit``, and labelled ``name``.
    """
    figure, axes = subplot(11, 0.7 + 0.55 * len(blocks))
    for row, matrices in enumerate(blocks.values()):
        left = 0.0
        for matrix, size in matrices.items():
            width, colour = size / unit, COLOURS[matrix]
            axes.barh(row, width, 0.8, left, color=colour, edgecolor="white", linewidth=1.5)
            label = matrix if width > 0.9 else "k, v"
            axes.text(left + width / 2, row, label, ha="center", va="center", color=ink_on(colour), fontsize=9)
            left += width
        axes.text(left + 0.1, row, f"{left:g} {name}", va="center", fontsize=9)
    axes.set_yticks(range(len(blocks)), list(blocks))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * max(sum(matrices.values()) for matrices in blocks.values()) / unit)
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure
