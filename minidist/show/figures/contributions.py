"""Pictures of a collective's arrays, before, after and step by step: whose contributions each chunk holds.

Each rank fills chunk c of its array with a power of two that belongs to (rank, c) alone. Sums of such numbers are sets:
whatever a collective does to the arrays, the value of a chunk says exactly whose contributions it holds, and a
contribution counted twice shows as well.
"""

from collections.abc import Sequence

import numpy as np

from minidist.show.palette import ink_on, of_rank

LETTERS = "abcdefgh"


def marked(rank: int, size: int) -> np.ndarray:
    """Return the marks of a rank's array, one for each chunk: (size,) int64, or uint64 for 8 ranks."""
    if size > 8:
        raise ValueError(
            f"{size} ranks with {size} chunks each need {size * size} bits, and there are 64: use at most 8"
        )
    dtype = np.int64 if size < 8 else np.uint64  # the last of 8 x 8 bits would be an int64's sign
    return dtype(1) << (rank * size + np.arange(size)).astype(dtype)


def held(value: int, size: int) -> list[tuple[int, int]]:
    """Return the (rank, chunk) pairs whose marks sum to the value."""
    return [(bit // size, bit % size) for bit in range(size * size) if int(value) >> bit & 1]


def name(value: int, size: int) -> str:
    """Return 'b2' for rank 2's chunk 1, 'b013' for the sum of three ranks' chunk 1, 'Σb' for that of all ranks."""
    pairs = held(value, size)
    if not pairs:
        return ""
    letters = "".join(sorted({LETTERS[chunk] for _, chunk in pairs}))
    ranks = sorted({rank for rank, _ in pairs})
    return f"Σ{letters}" if len(ranks) == size > 1 else letters + "".join(map(str, ranks))


def draw(panels: Sequence[tuple[str, np.ndarray]], size: int, per_row: int = 4, outline_changes: bool = False):
    """Return a matplotlib Figure with one panel for each (title, values), values of shape (ranks, chunks).

    A cell has a stripe in the colour of each rank whose contribution it holds; a cell of 0 is empty. With
    ``outline_changes``, a frame marks each cell that differs from the previous panel.
    """
    from matplotlib.figure import Figure

    columns = min(per_row, len(panels))
    rows = -(-len(panels) // columns)
    height, width = np.asarray(panels[0][1]).shape
    figure = Figure(
        figsize=(0.7 + columns * (0.62 * width + 0.25), rows * (0.46 * height + 0.55)), layout="constrained"
    )
    grid = figure.subplots(rows, columns, squeeze=False)
    for index, axes in enumerate(grid.flat):
        if index >= len(panels):
            axes.axis("off")
            continue
        title, values = panels[index]
        before = panels[index - 1][1] if outline_changes and index else values
        _panel(axes, title, np.asarray(values), np.asarray(before), size, names=index % columns == 0)
    return figure


def _panel(axes, title: str, values: np.ndarray, before: np.ndarray, size: int, names: bool) -> None:
    from matplotlib.patches import Rectangle

    for (row, column), value in np.ndenumerate(values):
        pairs = held(value, size)
        stripes = [of_rank(rank) for rank, _ in pairs] or ["#FFFFFF"]
        for i, colour in enumerate(stripes):
            axes.add_patch(Rectangle((column + i / len(stripes), row), 1 / len(stripes), 1, color=colour, linewidth=0))
        ink = ink_on(stripes[0]) if len(stripes) == 1 else "black"
        box = None if len(stripes) == 1 else {"facecolor": "white", "edgecolor": "none", "pad": 1.0}
        height = 0.5 if len(stripes) == 1 else 0.68  # below the middle, so that the stripes show above it
        axes.text(column + 0.5, row + height, name(value, size), ha="center", va="center", color=ink, size=9, bbox=box)
        axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor="white" if pairs else "#C8C8C8", lw=1.5))
    for row, column in zip(*np.nonzero(values != before), strict=True):
        axes.add_patch(Rectangle((column, row), 1, 1, fill=False, edgecolor="black", linewidth=2.2, zorder=5))
    axes.set_xlim(-0.05, values.shape[1] + 0.05)
    axes.set_ylim(values.shape[0] + 0.05, -0.05)
    axes.set_yticks(np.arange(len(values)) + 0.5, [f"rank {row}" for row in range(len(values))] if names else [])
    axes.set_xticks([])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_title(title, fontsize=10)
