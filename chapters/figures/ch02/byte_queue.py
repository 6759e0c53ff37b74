"""A byte queue as a ring: which cache lines are still unread, and where the two counters point."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.comm.transports.byte_queue import COUNTERS, ByteQueue
from minidist.show.palette import SERIES

LINE = 64  # bytes: a cache line, one wedge of the ring
STALE, EMPTY = "#F2F2F2", "#FFFFFF"


@dataclass(frozen=True)
class Snapshot:
    """A queue at one moment."""

    caption: str
    tail: int  # bytes ever written
    head: int  # bytes ever read
    letters: tuple[str, ...]  # the first byte of each line, as a character; "" if it is zero

    @property
    def lines(self) -> int:
        return len(self.letters)

    def unread(self, line: int) -> bool:
        """Return whether the line at this place of the buffer is still unread."""
        behind = (line - self.head // LINE) % self.lines  # lines from the head on, around the ring
        return behind < (self.tail - self.head) // LINE


def new(lines: int) -> ByteQueue:
    """Return an empty queue with space for ``lines`` cache lines, in this process."""
    return ByteQueue(memoryview(bytearray(COUNTERS + lines * LINE)), capacity=lines * LINE)


def snapshot(queue, caption: str) -> Snapshot:
    """Return what a ``ByteQueue`` holds now. Each message is filled with one letter, which identifies it."""
    first_bytes = queue.data[::LINE]
    letters = tuple(chr(byte) if byte else "" for byte in np.asarray(first_bytes))
    return Snapshot(caption, int(queue.written), int(queue.written) - queue.unread, letters)


def draw(snapshots: Sequence[Snapshot]):
    """Return a matplotlib Figure with a ring for each snapshot, and a colour for each letter."""
    from matplotlib.figure import Figure

    letters = sorted({letter for shot in snapshots for letter in shot.letters if letter})
    colours = dict(zip(letters, SERIES, strict=False))
    figure = Figure(figsize=(2.35 * len(snapshots), 2.9), layout="constrained")
    for axes, shot in zip(figure.subplots(1, len(snapshots), squeeze=False)[0], snapshots, strict=True):
        _ring(axes, shot, colours)
    return figure


def _ring(axes, shot: Snapshot, colours: dict[str, str]) -> None:
    from matplotlib.patches import Wedge

    each = 360 / shot.lines
    for line, letter in enumerate(shot.letters):
        upper = 90 - each * line  # clockwise from the top
        unread = shot.unread(line)
        colour = colours[letter] if unread else STALE if letter else EMPTY
        wedge = Wedge((0, 0), 1.0, upper - each, upper, width=0.42, facecolor=colour, edgecolor="#707070", linewidth=1)
        axes.add_patch(wedge)
        x, y = _at(upper - each / 2, 0.79)
        axes.text(
            x, y, letter, ha="center", va="center", color="white" if unread else "#B0B0B0", fontweight="bold", size=11
        )
    for name, count, radius, tip in (("tail", shot.tail, 1.38, 1.03), ("head", shot.head, 0.12, 0.56)):
        angle = 90 - each * (count // LINE % shot.lines)
        x, y = _at(angle, radius)
        arrow = {"arrowstyle": "-|>", "color": "black", "linewidth": 1.2, "shrinkA": 0, "shrinkB": 0}
        axes.annotate("", xy=_at(angle, tip), xytext=(x, y), arrowprops=arrow)
        if name == "tail":
            x, y = _at(angle, 1.52)
            axes.text(x, y, "tail", ha="center", va="center", size=9)
    axes.text(0, -0.02, "head", ha="center", va="center", size=9, bbox={"color": "white", "pad": 0.6})
    axes.text(0, -1.72, f"tail {shot.tail}   head {shot.head}", ha="center", size=9, family="monospace")
    axes.set_title(shot.caption, fontsize=10)
    axes.set_xlim(-1.7, 1.7)
    axes.set_ylim(-1.85, 1.7)
    axes.set_aspect("equal")
    axes.axis("off")


def _at(degrees: float, radius: float) -> tuple[float, float]:
    return radius * float(np.cos(np.radians(degrees))), radius * float(np.sin(np.radians(degrees)))
