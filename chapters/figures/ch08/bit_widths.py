"""The bit widths of a model's arrays: each operation's output, the gradient of that output, and what is saved."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.show.palette import SERIES

COLOURS = {64: "#4D4D4D", 32: "#A0A0A0", 16: SERIES[4], 8: "#CDE8F7", 0: "#FFFFFF"}


@dataclass
class Operation:
    """One operation of a real run.

    Attributes:
        output, gradient: bits that the numbers need; 0 if there is no array.
        saved: bits of a number -> bytes saved for backward that no earlier operation had saved.
    """

    name: str
    output: int = 0
    gradient: int = 0
    saved: dict[int, int] | None = None


def bits_needed(array: np.ndarray) -> int:
    """Return 64, 32, or 16 for a float32 array that holds only bfloat16 numbers: then all lower halves are zero."""
    if array.dtype == np.float32:
        return 32 if (np.ascontiguousarray(array).view(np.uint32) & 0xFFFF).any() else 16
    return 8 * array.dtype.itemsize


def draw(operations: Sequence[Operation]):
    """Return a matplotlib Figure: a row for each operation, in the order of forward."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(11, 0.9 + 0.27 * len(operations)), layout="constrained")
    axes = figure.subplots()
    most = max(sum((operation.saved or {}).values()) for operation in operations) or 1

    def box(left: float, row: int, width: float, bits: int, text: str) -> None:
        axes.add_patch(Rectangle((left, row - 0.42), width, 0.84, facecolor=COLOURS[bits], edgecolor="white"))
        colour = "white" if bits == 64 else "black"
        axes.text(left + width / 2, row, text, ha="center", va="center", fontsize=8, color=colour)

    for row, operation in enumerate(operations):
        axes.text(-0.1, row, operation.name, ha="right", va="center", fontsize=9)
        for column, bits in enumerate((operation.output, operation.gradient)):
            box(1.1 * column, row, 1, bits, str(bits) if bits else "")
        left = 2.3
        for bits, nbytes in sorted((operation.saved or {}).items(), reverse=True):
            width = 4 * nbytes / most
            axes.add_patch(Rectangle((left, row - 0.42), width, 0.84, facecolor=COLOURS[bits], edgecolor="none"))
            left += width
        if operation.saved:
            parts = " + ".join(f"{nbytes:,} ({bits} bits)" for bits, nbytes in sorted(operation.saved.items())[::-1])
            axes.text(left + 0.06, row, parts, va="center", fontsize=8)
    for x, title in ((0.5, "output"), (1.6, "gradient\nof the output"), (2.3, "saved for backward, bytes")):
        axes.text(x, -0.8, title, ha="left" if x == 2.3 else "center", va="bottom", fontsize=9)
    axes.set_xlim(-1.3, 8)
    axes.set_ylim(len(operations) - 0.4, -2.1)
    axes.axis("off")
    return figure
