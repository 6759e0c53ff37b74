"""Published bus bandwidths, each beside the line rate of the links that it used."""

from collections.abc import Sequence
from typing import NamedTuple

from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, PAPER, ink_on

COLOUR = MEANINGS["communication"]


class Published(NamedTuple):
    """Published measurement of a bus bandwidth.

    Attributes:
        line_rate, busbw: GB/s; the line rate is that of all links between the slowest two parts, in one direction.
    """

    name: str
    line_rate: float
    busbw: float

    @property
    def share(self) -> float:
        return self.busbw / self.line_rate


def draw(measurements: Sequence[Published]):
    """Return a matplotlib Figure: a bar for each, as long as its share of the line rate."""
    figure, axes = subplot(10, 0.42 * len(measurements) + 1.0)
    for row, one in enumerate(measurements):
        axes.barh(row, 1, height=0.7, color="none", edgecolor=PAPER["faint"])
        axes.barh(row, one.share, height=0.5, color=COLOUR)
        text = f"{one.busbw:.0f} of {one.line_rate:.0f} GB/s"
        axes.text(0.02, row, text, va="center", fontsize=9, color=ink_on(COLOUR))
    axes.axvline(1, color=PAPER["ink"], lw=1, ls=":")
    axes.set_yticks(range(len(measurements)), [one.name for one in measurements], fontsize=9)
    axes.invert_yaxis()
    axes.set_xlabel("busbw / line rate", fontsize=9)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return figure
