"""Several pipelines below each other on one time axis, small: what is longer takes longer.

A band has a row for each rank; grey is idle time. A cover hides what has not happened yet.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

from minidist.parallel.tools.schedule_check import Slot
from minidist.parallel.tools.schedules import Action
from minidist.show.demos.pipeline.kinds import end_of
from minidist.show.figures.pipelines import colour_of
from minidist.show.figures.timeline import COLOURS
from minidist.show.player.scene import Box, Curve, Label, Shape

LEFT, RIGHT = 13, 70
GAP = 0.4  # lines between two bands
APART = 0.1  # characters between two cells
VISIBLE = 0.1  # characters: what is narrower is not drawn
MESSAGE = COLOURS["communication"]


@dataclass(frozen=True)
class Band:
    """One pipeline.

    Args:
        rows: each rank's actions and their times.
        told: its length, which appears when it is over.
        delays: intervals (from, to) in which each rank waits for a message that is in flight.
        mistaken: actions with a wrong input, where it begins.
        corrupted: actions with a wrong result.
        stuck_until: if the ranks wait for each other forever, until when that is shown.
    """

    name: str
    rows: Sequence[Sequence[Slot]]
    told: str
    delays: Sequence[Sequence[tuple[float, float]]] = ()
    mistaken: Collection[Action] = ()
    corrupted: Collection[Action] = ()
    stuck_until: float = 0

    @cached_property
    def end(self) -> float:
        return max(self.stuck_until, end_of(self.rows))


@dataclass(frozen=True)
class Chart:
    """Bands on one axis.

    Args:
        unit: unit of the axis.
        scale: how many units one of the bands' times is.
        right: end of the axis, in characters.
    """

    bands: Sequence[Band]
    unit: str
    scale: float = 1
    right: float = RIGHT

    @cached_property
    def longest(self) -> float:
        return max(band.end for band in self.bands)

    @property
    def band_height(self) -> float:
        """Lines of a band."""
        return max(2, 0.5 * len(self.bands[0].rows))

    @property
    def tops(self) -> list[float]:
        """The line at which each band begins."""
        return [number * (self.band_height + GAP) for number in range(len(self.bands))]

    @property
    def bottom(self) -> float:
        return len(self.bands) * (self.band_height + GAP)

    @property
    def height(self) -> float:
        return self.bottom + 1.1

    def x(self, time: float) -> float:
        return LEFT + (self.right - LEFT) * time / self.longest

    def shapes(self, now: float) -> tuple[Shape, ...]:
        """All bands up to a time."""
        found = list(self._all_rows)
        if now < self.longest:
            found.append(Box(self.x(now), 0, self.right + 0.5 - self.x(now), self.bottom, "paper", mark=" "))
        first = min(band.end for band in self.bands)
        for band, top in zip(self.bands, self.tops, strict=True):
            found.append(Label(0, top + 0.5, band.name, "ink"))
            if band.end <= now:
                wrong = band.corrupted or band.stuck_until
                found.append(
                    Label(0, top + 1.45, band.told, "wrong" if wrong else "right" if band.end == first else "ink")
                )
        return (*found, *self._axis)

    @cached_property
    def _all_rows(self) -> list[Shape]:
        return [shape for band, top in zip(self.bands, self.tops, strict=True) for shape in self._rows(band, top)]

    def _rows(self, band: Band, top: float) -> list[Shape]:
        """What the ranks of a band do, from the top line on."""
        found: list[Shape] = []
        for rank, row in enumerate(band.rows):
            pitch = self.band_height / len(band.rows)
            y, h = top + rank * pitch, pitch - 0.08
            outline = "wrong" if band.stuck_until else None
            found.append(Box(LEFT, y, self.x(band.end) - LEFT, h, "faint", mark="·", outline=outline))
            for begin, end in band.delays[rank] if band.delays else ():
                if self.x(end) - self.x(begin) > VISIBLE:
                    found.append(Box(self.x(begin), y, self.x(end) - self.x(begin), h, MESSAGE, mark="c"))
            for slot in row:
                begin, w = self.x(slot.start), self.x(slot.end) - self.x(slot.start)
                name = f"{band.name}: micro-batch {slot.action.micro_batch}"
                colour = "wrong" if slot.action in band.corrupted else colour_of(slot.action, len(band.rows))
                outline = "ink" if slot.action in band.mistaken else None
                found.append(Box(begin, y, w - min(APART, w / 4), h, colour, "", slot.action.kind, outline, name))
        return found

    @cached_property
    def _axis(self) -> list[Shape]:
        end = self.longest * self.scale
        sizes = (size * 10.0**power for power in range(-4, 7) for size in (1, 2, 5))
        tick = next(size for size in sizes if end / size <= 10)
        found: list[Shape] = [Label(LEFT - 1, self.bottom + 0.6, self.unit, "ink", "end")]
        for number in range(int(end / tick) + 1):
            x = self.x(number * tick / self.scale)
            found.append(Curve(((x, self.bottom - 0.2), (x, self.bottom + 0.15)), "ink", 1))
            found.append(Label(x, self.bottom + 0.6, f"{number * tick:g}", "ink", "middle"))
        return found
