"""A pipeline as planned, on the time axis of all schedules: a lane for each rank, and beside it what the rank stores.

A cell is an action with the number of its micro-batch, and the grey between cells is the bubble. The axis is as long as
the longest schedule but the naive one, which takes several times as long: its lanes move on to the left.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from minidist.parallel.tools.schedule_check import Slot
from minidist.show.demos.pipeline.cells import cell, number
from minidist.show.demos.pipeline.kinds import end_of
from minidist.show.demos.pipeline.store import Stack, limit
from minidist.show.palette import of_rank
from minidist.show.player.scene import Box, Curve, Label, Shape

LEFT, RIGHT = 19, 70.9  # start and end of the axis; the ranks' names and what they store are to the left
TICKS = 3  # slots: a forward and a backward; twice as many on an axis of more than
CROWDED = 40
SWAP = "▼ swap"
AHEAD = 1  # slots that stay empty to the right of a cursor that would leave the picture


@dataclass(frozen=True)
class Lanes:
    """The picture of one schedule.

    Args:
        rows: each rank's actions and their times, in slots.
        window: the slots that the axis shows.
        micro_batches: micro-batches of a step.
        virtual: stages of a rank.
        mistaken: action -> the wrong micro-batch that it takes.
        corrupted: actions with a wrong result because of those.
        stuck: rank -> the one that it waits for forever, after the last action; filled where these form a loop.
    """

    rows: Sequence[Sequence[Slot]]
    window: int
    micro_batches: int
    virtual: int = 1
    mistaken: Mapping = field(default_factory=dict)
    corrupted: Collection = ()
    stuck: Mapping[int, int] = field(default_factory=dict)

    @property
    def ranks(self) -> int:
        return len(self.rows)

    @property
    def pitch(self) -> float:
        """Lines from one rank's lane to the next."""
        return 2 if self.ranks <= 4 else 1

    @property
    def bottom(self) -> float:
        return 1 + self.ranks * self.pitch

    @property
    def height(self) -> float:
        return self.bottom + 1

    def shapes(self, now: float) -> tuple[Shape, ...]:
        """What has happened by a time."""
        first = max(0.0, now + AHEAD - self.window)  # the time at the left end of the axis

        def x(time: float) -> float:
            return LEFT + (RIGHT - LEFT) * (min(max(time, first), now) - first) / self.window

        found = self._axis(first)
        h = 0.78 * self.pitch
        for rank, row in enumerate(self.rows):
            y = 1 + rank * self.pitch
            found.append(Label(0, y + h / 2, f"rank {rank}", of_rank(rank)))
            found += Stack(rank, row, self.ranks, self.micro_batches, self.virtual).shapes(now, y, h)
            found += self._idle(rank, y, h, x)
        found += limit(self.ranks, self.micro_batches, 1, self.bottom)
        numbers: list[Shape] = []  # over all cells
        for slot, rank in sorted(((slot, rank) for rank, row in enumerate(self.rows) for slot in row), key=_begin):
            if slot.start < now and slot.end > first:
                place = x(slot.start), x(slot.end), 1 + rank * self.pitch, h
                box = cell(slot, self.ranks, *place, self.mistaken, self.corrupted)
                found.append(box)
                numbers += number(slot, box)
        return (*found, *numbers, *self._swap(x(now), first), *self._cursor(x(now), now))

    def _idle(self, rank: int, y: float, h: float, x: Callable[[float], float]) -> list[Shape]:
        """What lies below a rank's cells."""
        idle = Box(LEFT, y, x(inf) - LEFT, h, "faint", mark="·")
        begin, end = x(end_of(self.rows)), x(inf)
        if rank not in self.stuck or begin == end:
            return [idle]
        text, fill = f"waits for rank {self.stuck[rank]}", "wrong" if self._in_loop(rank) else "faint"
        return [idle, Box(begin, y, end - begin, h, fill, text if len(text) < end - begin else "", "x", "wrong")]

    def _in_loop(self, rank: int) -> bool:
        """Whether a rank waits for itself, through others; the rest of the stuck ones wait for these."""
        other = rank
        for _ in self.stuck:
            other = self.stuck[other]
            if other == rank:
                return True
        return False

    def _axis(self, first: float) -> list[Shape]:
        shapes: list[Shape] = []
        for slot in range(0, int(first + self.window) + 1, TICKS if self.window <= CROWDED else 2 * TICKS):
            if slot >= first:
                x = LEFT + (RIGHT - LEFT) * (slot - first) / self.window
                shapes.append(Curve(((x, self.bottom - 0.2), (x, self.bottom + 0.1)), "ink", 1))
                shapes.append(Label(x, self.bottom + 0.45, str(slot), "ink", "middle"))
        return shapes

    def _swap(self, cursor: float, first: float) -> list[Label]:
        """Above the lanes, where the mistake was made, once the cursor's own text is far enough to the right."""
        starts = [slot.start for row in self.rows for slot in row if slot.action in self.mistaken]
        if not starts or min(starts) < first:
            return []
        x = LEFT + (RIGHT - LEFT) * (min(starts) - first) / self.window
        return [Label(x, 0.5, SWAP, "wrong")] if cursor > x + 2 * len(SWAP) else []

    def _cursor(self, x: float, now: float) -> list[Shape]:
        text = f"slot {now:g}"
        middle = min(x, 72 - len(text) / 2)
        return [Box(x, 1, 0.2, self.bottom - 1, "ink", mark="|"), Label(middle, 0.5, text, "ink", "middle")]


def _begin(entry: tuple[Slot, int]) -> tuple[float, int]:
    return entry[0].start, entry[1]
