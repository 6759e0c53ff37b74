"""A bar for each cluster, on one time axis: how many of the GPUs compute at any time, and how long the step takes.

The whole height of a bar is all GPUs. Its lower part is the share of them that compute; the others wait.
"""

from functools import cached_property
from itertools import pairwise
from math import ceil

from minidist.show.demos.cluster.colours import COMPUTES, FREE, MARKS
from minidist.show.demos.cluster.run import Step
from minidist.show.player.scene import WIDTH, Box, Curve, Label, Shape

CELLS, LEFT = 47, 11  # characters of the longest step, so that its time fits behind it, and where time begins
FINER = 2  # parts of a cell that have a share of their own
TOP, PITCH, HIGH = 7.0, 1.5, 1.2  # the first bar, from one to the next, and the height of one
FLAT = 0.04  # a smaller share is not drawn


def height(clusters: int) -> float:
    return TOP + clusters * PITCH + 0.8


class Bars:
    """All clusters' bars on one time axis.

    Args:
        longest: seconds, of the longest step that will be shown.
        one: seconds of the step in one node.
    """

    def __init__(self, longest: float, one: float) -> None:
        self.cell, self.one = longest / CELLS, one
        self._known: dict[int, list[float]] = {}  # of a step: shares

    def x(self, time: float) -> float:
        return LEFT + time / self.cell

    def cells(self, step: Step) -> int:
        """How many a step takes; the last one may end early."""
        return ceil(step.seconds / self.cell - 1e-9)  # the longest takes CELLS, but for a rounding

    def row(self, place: int, name: str, step: Step, cells: int | None) -> list[Shape]:
        """A cluster's name, and the first ``cells`` cells of its bar; None for a step not shown yet."""
        top = TOP + place * PITCH
        shapes: list[Shape] = [Label(LEFT - 1, top + HIGH / 2, name, "faint" if cells is None else "ink", "end")]
        if not cells:
            return shapes
        end = min(cells * self.cell, step.seconds)
        shapes.append(Box(LEFT, top, self.x(end) - LEFT, HIGH, FREE, "", MARKS[FREE], id=f"step, {name}"))
        for number, share in enumerate(self.shares(step)[: FINER * cells]):
            x, w = LEFT + number / FINER, min(1 / FINER, self.x(end) - LEFT - number / FINER)
            if share > FLAT:
                y = top + HIGH * (1 - share)
                shapes.append(Box(x, y, w, HIGH * share, COMPUTES, "", MARKS[COMPUTES]))
        if cells >= self.cells(step):
            shapes.append(self._time(step, top))
        return shapes

    def _time(self, step: Step, top: float) -> Label:
        """How long a step took, behind its bar."""
        times = f" {step.seconds / self.one:.1f}×" if step.seconds > self.one else ""
        return Label(self.x(step.seconds) + 0.7, top + HIGH / 2, f"{microseconds(step.seconds)}{times}")

    def shares(self, step: Step) -> list[float]:
        """Share of all GPUs' time in which they compute, for each part of a cell."""
        if id(step) not in self._known:
            part = self.cell / FINER
            edges = [min(number * part, step.seconds) for number in range(ceil(step.seconds / part - 1e-9) + 1)]
            self._known[id(step)] = [
                sum(step.computing(rank, a, b) for rank in range(step.ranks)) / step.ranks for a, b in pairwise(edges)
            ]
        return self._known[id(step)]

    @cached_property
    def tick(self) -> int:
        """Microseconds from one number on the axis to the next."""
        longest = self.cell * CELLS * 1e6
        return next(t for t in (10, 20, 50, 100, 200, 500, 10**3, 2000, 5000, 10**9) if longest / t <= 9)

    def axis(self, clusters: int) -> list[Shape]:
        """Round times below the bars, and the lines from them upwards, which bars cover."""
        bottom = TOP + clusters * PITCH
        shapes: list[Shape] = [Label(LEFT - 1, bottom + 0.4, "µs", "faint", "end")]
        for number in range(int(self.cell * CELLS * 1e6 / self.tick) + 1):
            x = self.x(number * self.tick / 1e6)
            shapes.append(Curve(((x, TOP), (x, bottom - 0.1)), "faint", 1))
            shapes.append(Label(min(x, WIDTH - 2), bottom + 0.4, str(number * self.tick), "faint", "middle"))
        return shapes

    def mark(self, place: int, step: Step) -> list[Shape]:
        """Mark the end of the step to compare with, on a bar."""
        top, x = TOP + place * PITCH, self.x(step.seconds)
        return [Box(x - 0.15, top - 0.2, 0.3, HIGH + 0.4, "ink", "", "|")]


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"
