"""The levels of a cluster, from a multiprocessor's memory to the links between halls: the bandwidth of each."""

from collections.abc import Sequence
from typing import NamedTuple

from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, ink_on

CHIP, NODE, CLUSTER = (MEANINGS[what] for what in ("computing", "communication", "link between nodes"))
WORDS = {CHIP: "inside the chip", NODE: "inside the node", CLUSTER: "between nodes"}


class Level(NamedTuple):
    """One GPU's share of one level. bandwidth: bytes/s in one direction. colour: where it is."""

    name: str
    bandwidth: float
    colour: str


def draw(levels: Sequence[Level]):
    """Return a matplotlib Figure: a bar for each level, the fastest on top, and the step down; logarithmic axis."""
    from matplotlib.patches import Rectangle

    figure, axes = subplot(11, 0.45 * len(levels) + 1.2)
    least = min(level.bandwidth for level in levels) / 3
    for row, level in enumerate(levels):
        axes.barh(row, level.bandwidth - least, left=least, height=0.62, color=level.colour)
        axes.text(level.bandwidth * 1.1, row, amount(level.bandwidth), va="center", fontsize=9)
        if row:
            down = levels[row - 1].bandwidth / level.bandwidth
            axes.text(
                least * 1.12, row, f"÷ {down:.2g}", va="center", fontsize=9, color=ink_on(level.colour), weight="bold"
            )
    axes.set_yticks(range(len(levels)), [level.name for level in levels], fontsize=9)
    axes.invert_yaxis()
    most = max(level.bandwidth for level in levels)
    axes.set(xscale="log", xlim=(least, most * 4), xlabel="bytes/s of one GPU (links: one direction)")
    handles = [Rectangle((0, 0), 1, 1, color=colour, label=word) for colour, word in WORDS.items()]
    axes.legend(handles=handles, loc="lower right", frameon=False, fontsize=9)
    return figure


def amount(bandwidth: float) -> str:
    """Return bytes/s as text: 3.35 TB/s, 450 GB/s."""
    return f"{bandwidth / 1e12:.3g} TB/s" if bandwidth >= 1e12 else f"{bandwidth / 1e9:.3g} GB/s"
