"""Runs as cells: green for the bits of one process, red for different bits, pink for a run that stopped."""

from collections.abc import Mapping, Sequence

from minidist.show.figures.grid import COLOURS
from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, ink_on
from minidist.verify.matrix import DIFFERENT, SAME

STOPS = "stops"
VERDICTS = {
    SAME: (COLOURS[SAME], "same"),
    DIFFERENT: (COLOURS[DIFFERENT], "different"),
    STOPS: (MEANINGS["lost"], "stops"),
}


def draw(rows: Mapping[str, Sequence[str]], columns: Sequence[str], gaps: Sequence[int] = ()):
    """Return a matplotlib Figure: a row for each name, a cell for each column.

    Args:
        rows: name -> for each column, how its run ended: a key of VERDICTS.
        columns: their names.
        gaps: columns that begin a new group, after a gap.
    """
    from matplotlib.patches import Rectangle

    figure, axes = subplot(11, 0.7 + 0.36 * len(rows))
    at = [column + 0.15 * sum(gap <= column for gap in gaps) for column in range(len(columns))]
    for y, verdicts in enumerate(rows.values()):
        for x, verdict in zip(at, verdicts, strict=True):
            colour, text = VERDICTS[verdict]
            axes.add_patch(Rectangle((x + 0.03, y + 0.05), 0.94, 0.9, color=colour))
            ink = ink_on(colour)
            axes.text(x + 0.5, y + 0.5, text, ha="center", va="center", color=ink, fontsize=9)
    axes.set(xlim=(0, at[-1] + 1), ylim=(len(rows), 0))
    axes.set_xticks([x + 0.5 for x in at], columns, fontsize=9)
    axes.set_yticks([y + 0.5 for y in range(len(rows))], rows, fontsize=9)
    axes.tick_params(length=0, top=True, labeltop=True, bottom=False, labelbottom=False)
    axes.spines[:].set_visible(False)
    return figure
