"""What each rank has done so far, on every cluster, on one time axis.

A rank is half a line high. A cell of it, one character wide, tells how much of that time it computed.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import ceil

from minidist.show.demos.cluster.colours import COMPUTES, MARKS, PARTLY, WAITS
from minidist.show.demos.cluster.run import Step
from minidist.show.player.scene import WIDTH, Box, Label, Shape

CELLS, LEFT = 60, 11  # characters of the longest step, and where time begins
TOP, PITCH = 8, 5  # the first line, and lines from one cluster to the next


def height(clusters: int) -> float:
    return TOP + clusters * PITCH


def colour_of_time(computing: float) -> str:
    """Of a cell in which a rank computes for that share of the time."""
    return COMPUTES if computing >= 2 / 3 else PARTLY if computing >= 1 / 3 else WAITS


class Times:
    """All clusters' lanes on one time axis.

    Args:
        longest: seconds, of the longest step that will be shown.
        one: seconds of the step in one node.
    """

    def __init__(self, longest: float, one: float) -> None:
        self.cell, self.one = longest / CELLS, one
        self._known: dict[str, list[list[str]]] = {}  # lanes

    def x(self, time: float) -> float:
        return LEFT + time / self.cell

    def cells(self, step: Step) -> int:
        """How many a step takes; the last one may end early."""
        return ceil(step.seconds / self.cell - 1e-9)  # the longest takes CELLS, but for a rounding

    def row(self, place: int, words: Sequence[str], step: Step, cells: int | None) -> list[Shape]:
        """A cluster's name in at most two lines, and so many cells of its lanes; None for a step not shown yet."""
        top, ink = TOP + place * PITCH, "faint" if cells is None else "ink"
        shapes: list[Shape] = [Label(0, top + 0.5 + line, word, ink) for line, word in enumerate(words)]
        if cells is None:
            return [*shapes, Label(LEFT, top + 1.5, "?", "faint")]
        ended, shown = cells >= self.cells(step), self._lanes(step)[:cells]
        lane = 4 / step.ranks
        for number, fills in enumerate(shown):
            x, w = LEFT + number, min(1.0, self.x(step.seconds) - LEFT - number)
            shapes += [Box(x, top + lane * r, w, 0.85 * lane, fill, "", MARKS[fill]) for r, fill in enumerate(fills)]
        end = self.x(step.seconds) if ended else LEFT + cells
        shapes.append(Box(min(end, WIDTH - 0.25), top, 0.25, 4, "ink", "", "|"))
        if ended:
            times = f"{step.seconds / self.one:.1f}×"
            shapes += [Label(0, top + 2.5, microseconds(step.seconds)), Label(0, top + 3.5, times)]
        return shapes

    def _lanes(self, step: Step) -> list[list[str]]:
        """For each cell the colour of each rank."""
        if step.name not in self._known:
            edges = [min(number * self.cell, step.seconds) for number in range(self.cells(step) + 1)]
            self._known[step.name] = [
                [colour_of_time(step.computing(rank, a, b)) for rank in range(step.ranks)] for a, b in pairwise(edges)
            ]
        return self._known[step.name]

    def axis(self, clusters: int) -> list[Shape]:
        """Round times below the lanes."""
        y, longest = TOP + clusters * PITCH - 0.5, self.cell * CELLS * 1e6
        tick = next(t for t in (10, 20, 50, 100, 200, 500, 10**3, 2000, 5000, 10**9) if longest / t <= 9)
        shapes: list[Shape] = [Label(0, y, "µs", "faint")]
        for number in range(int(longest / tick) + 1):
            shapes.append(Label(min(self.x(number * tick / 1e6), WIDTH - 2), y, str(number * tick), "faint", "middle"))
        return shapes

    def mark(self, place: int, step: Step, words: str) -> list[Shape]:
        """Where a step ends that a row is compared with."""
        top, x = TOP + place * PITCH, self.x(step.seconds)
        text = f"▼ {words}: {microseconds(step.seconds)}"
        return [Box(x, top, 0.25, 4, "ink", "", "|"), Label(x, top - 0.5, text)]


def microseconds(seconds: float) -> str:
    return f"{seconds * 1e6:,.0f} µs"
