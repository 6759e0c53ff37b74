"""A protocol, operation by operation: what a reader finds if everything ends right after each of them."""

from collections.abc import Mapping, Sequence

from minidist.show.palette import SERIES, ink_on, on_paper

COLOURS = tuple(SERIES[number] for number in (2, 5, 4, 3))
NOTHING, BROKEN = "nothing", on_paper("wrong")


def draw(operations: Sequence[str], outcomes: Mapping[str, Sequence[str]], notes: Mapping[int, str] = {}):
    """Return a matplotlib Figure: operations down, kinds of end across.

    Args:
        operations: in their order.
        outcomes: kind of end -> what a reader finds after each operation; NOTHING is drawn as a loss.
        notes: number of an operation -> what it achieves.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    kinds = list(outcomes)
    named = sorted({found for column in outcomes.values() for found in column} - {NOTHING})
    colours = dict(zip(named, COLOURS, strict=False)) | {NOTHING: BROKEN}
    figure = Figure(figsize=(11, 0.27 * len(operations) + 0.7), layout="constrained")
    axes = figure.subplots()
    for row, operation in enumerate(operations):
        axes.text(0, row + 0.5, f"{row + 1:>2}  {operation}", ha="left", va="center", fontsize=9, family="monospace")
        for column, kind in enumerate(kinds):
            found = outcomes[kind][row]
            x = 5.0 + 1.6 * column
            axes.add_patch(Rectangle((x, row + 0.06), 1.55, 0.88, facecolor=colours[found]))
            ink = ink_on(colours[found])
            axes.text(x + 0.775, row + 0.5, found, ha="center", va="center", fontsize=8.5, color=ink)
        if row in notes:
            axes.text(5.1 + 1.6 * len(kinds), row + 0.5, notes[row], ha="left", va="center", fontsize=8.5)
    for column, kind in enumerate(kinds):
        axes.text(5.775 + 1.6 * column, -0.15, kind, ha="center", va="bottom", fontsize=9)
    axes.text(0, -0.15, "cut off right after", ha="left", va="bottom", fontsize=9)
    axes.set(xlim=(0, 7.9 + 1.6 * len(kinds)), ylim=(len(operations), -1.6))
    axes.axis("off")
    return figure
