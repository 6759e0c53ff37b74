"""One real data-parallel step: a few numbers of every rank, before and after each operation.

Equal rows in a column are equal numbers. Gradients differ until they are summed; weights never do.
"""

from collections.abc import Mapping, Sequence

import numpy as np

ARROWS = "#606060"


def draw(columns: Mapping[str, Sequence[np.ndarray]], between: Sequence[str] = ()):
    """Return a matplotlib Figure: a column for each moment, a row for each rank, a coloured cell for each number.

    Args:
        columns: title -> an array for each rank, all of one length. Each column has a colour scale of its own.
        between: what happens from each column to the next, written above the arrows.

    Raises:
        ValueError: if the arrays differ in number or length.
    """
    from matplotlib.figure import Figure

    stacks = {title: np.stack([np.ravel(array) for array in arrays]) for title, arrays in columns.items()}
    if len({stack.shape for stack in stacks.values()}) != 1:
        raise ValueError("every column needs one array for each rank, all of the same length")
    ranks, length = next(iter(stacks.values())).shape
    figure = Figure(figsize=(11, 0.9 + 0.42 * ranks))
    gap = 0.45  # of a strip's width, for the arrows
    width = 0.91 / (len(stacks) + gap * (len(stacks) - 1))
    bottom, height = 0.04, 0.42 * ranks / (0.9 + 0.42 * ranks)
    for number, (title, stack) in enumerate(stacks.items()):
        left = 0.065 + number * width * (1 + gap)
        axes = figure.add_axes((left, bottom, width, height))
        largest = np.abs(stack).max() or 1.0
        axes.imshow(stack, cmap="PuOr", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest")
        axes.hlines(np.arange(1, ranks) - 0.5, -0.5, length - 0.5, color="white", linewidth=5)
        same = bool((stack == stack[0]).all())
        axes.set_title(f"{title}\n" + ("same on all ranks" if same else "different"), fontsize=10)
        axes.set_xticks([])
        axes.set_yticks(range(ranks), [f"rank {rank}" for rank in range(ranks)] if number == 0 else [""] * ranks)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
        if number < len(stacks) - 1:
            start, end = left + width * 1.06, left + width * (1 + gap - 0.06)
            middle = bottom + height / 2
            arrow = {"arrowstyle": "-|>", "color": ARROWS, "linewidth": 1.5}
            axes.annotate("", (end, middle), (start, middle), "figure fraction", "figure fraction", arrowprops=arrow)
            if number < len(between):
                figure.text((start + end) / 2, middle + 0.05, between[number], ha="center", fontsize=9, color=ARROWS)
    return figure
