"""Lanes of time: for each rank what it computed, below that what it communicated, and a moving cursor.

Everything is drawn to scale: what is too short to be seen is a hairline, and short neighbours without a visible gap
are drawn as one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from minidist.analysis.steps import kind_of
from minidist.show.figures.timeline import COLOURS as OF_KINDS
from minidist.show.palette import COLLECTIVES, MEANINGS, of_rank
from minidist.show.player.scene import Box, Frame, Label, Shape
from minidist.trace import Event

LEFT, RIGHT = 9, 71  # start of time and end of the longest step; the ranks' names are to the left
MS = 1_000_000  # ns
WIDTHS = 8, 512  # of models: with fewer values LayerNorm leaves almost nothing, with more a step takes long
COLOURS = OF_KINDS | {
    "wait": MEANINGS["idle"],
    "hidden": MEANINGS["hidden communication"],
    "all-gather": COLLECTIVES["all-gather"],
    "reduce-scatter": COLLECTIVES["reduce-scatter"],
}
MARKS = {
    "forward": "F",
    "backward": "B",
    "optimizer": "O",
    "wait": ".",
    "communication": "c",
    "hidden": "h",
    "all-gather": "g",
    "reduce-scatter": "s",
}
DROPPED = "dropped"  # the first word in the name of a collective that an injected bug skips
APART = 0.15  # characters: a shorter gap is invisible
HAIRLINE = 0.1  # characters: a pixel of the page
GAP = 0.15  # characters between adjacent bars; narrow ones lose no more than a quarter of their width


@dataclass(frozen=True)
class Bar:
    """A stretch of one lane.

    Args:
        lane: "compute" or "communication".
        start, end: ns from the beginning of the step.
        colour: "#RRGGBB" or one of THEME.
        mark: the mark that fills it in terminals without colours.
        texts: the longest that fits is written on it.
        outline: the colour of its outline.
    """

    lane: str
    start: int
    end: int
    colour: str
    mark: str
    texts: tuple[str, ...] = ()
    outline: str | None = None

    @property
    def computes(self) -> bool:
        return self.colour in (COLOURS["forward"], COLOURS["backward"], COLOURS["optimizer"])


def joined(first: Bar, second: Bar) -> Bar:
    """Two bars as one, labelled with the range of their numbers, or with the text of the longer one."""
    if first.texts and second.texts and second.texts[-1].isdigit():
        texts = (f"{first.texts[-1].split('–')[0]}–{second.texts[-1]}",)
    else:
        texts = max(first, second, key=lambda one: one.end - one.start).texts
    return replace(first, end=max(first.end, second.end), texts=texts)


def bar(event: Event, kind: str, *texts: str, start: int | None = None, end: int | None = None) -> Bar:
    """An event, or the part of it from start to end, as a bar of this kind, a key of COLOURS."""
    lane = "compute" if kind in ("forward", "backward", "optimizer", "wait") else "communication"
    times = event.start if start is None else start, event.end if end is None else end
    return Bar(lane, *times, COLOURS[kind], MARKS[kind], texts)


def missing(event: Event, text: str) -> Bar:
    """The place of a skipped collective."""
    return Bar("communication", event.start, event.end, "wrong", "X", (text,))


def update(log: Sequence[Event]) -> Bar:
    """The optimizer's part of a step; outlined if a skipped collective has left it with wrong gradients."""
    event = next(event for event in log if kind_of(event) == "optimizer")
    wrong = any(is_dropped(event) for event in log)
    return replace(bar(event, "optimizer", "optimizer", "step"), outline="wrong" if wrong else None)


def is_dropped(event: Event) -> bool:
    return event.name.startswith(DROPPED)


def communications(log: Sequence[Event]) -> list[Event]:
    """One rank's collectives in order, including skipped ones."""
    return sorted((event for event in log if event.track == "communication"), key=lambda event: event.start)


def ticks(longest: float, most: int = 7) -> list[float]:
    """Round times from 0 to the longest, about ``most`` at most."""
    units = (unit * 10.0**power for power in range(-3, 9) for unit in (1, 2, 5))
    step = next(unit for unit in units if longest / unit <= most)
    return [round(number * step, 3) for number in range(int(longest / step) + 1)]


def tick(x: float, y: float) -> Box:
    """A short line down to (x, y), where an axis has its numbers."""
    return Box(x - HAIRLINE / 2, y - 0.3, HAIRLINE, 0.3, "faint", "", "'")


@dataclass(frozen=True)
class Lanes:
    """The picture of one step.

    Args:
        bars: bars of each rank.
        end: end of this step, in ns.
        longest: the longest of the steps to compare, which share one time axis.
    """

    bars: Sequence[Sequence[Bar]]
    end: int
    longest: int

    @property
    def pitch(self) -> int:
        """Lines from one rank to the next."""
        return 3 if len(self.bars) <= 4 else 2

    @property
    def height(self) -> int:
        return 2 + len(self.bars) * self.pitch

    def x(self, time: float) -> float:
        return LEFT + (RIGHT - LEFT) * time / self.longest

    @cached_property
    def seen(self) -> list[tuple[int, Bar]]:
        """Each visible bar and its line: waits cover compute, and the effects of a bug cover everything."""
        found: list[tuple[int, Bar]] = []
        for rank, bars in enumerate(self.bars):
            for line, lane in enumerate(("compute", "communication"), 1 + rank * self.pitch):
                found += [(line, one) for one in self._merged([one for one in bars if one.lane == lane])]
        return sorted(found, key=lambda entry: entry[1].colour == "wrong")

    @cached_property
    def names(self) -> list[Shape]:
        """The names of the ranks and of their lanes."""
        tops = [1 + rank * self.pitch for rank in range(len(self.bars))]
        ranks = [Label(0, top + 0.5, f"rank {rank}", of_rank(rank)) for rank, top in enumerate(tops)]
        return [*ranks, *(Label(0, top + 1.5, "  sends", "faint") for top in tops)]

    def frame(self, time: int, note: str, facts: Mapping[str, str]) -> Frame:
        """What has happened by a time, in ns."""
        begun = [(line, one) for line, one in self.seen if one.start < time]
        waits = [self._box(one, line, time) for line, one in begun if one.lane == "compute" and not one.computes]
        bars = [self._box(one, line, time, waits if one.computes else ()) for line, one in begun]
        x = self.x(time)
        cursor = Box(x, 1, 0.25, self.height - 2, "ink", "", "|")
        right = x < RIGHT - 12  # whether the time fits to the right
        clock = Label(x + (1 if right else -1), 0.5, f"{time / MS:.1f} ms", "ink", "start" if right else "end")
        tip = Label(x + 0.12, 0.5, "▼", "ink", "middle")
        return Frame((*self.names, *self._axis, *bars, cursor, tip, clock), note, facts)

    def _box(self, one: Bar, line: int, time: int, above: Sequence[Box] = ()) -> Box:
        """A bar up to a time: the part not covered by others on its line, with a text if that part is in one piece."""
        start, end = self.x(one.start), self.x(min(time, one.end))
        width = max(HAIRLINE, end - start - min(GAP, (end - start) / 4))
        left = min(start, RIGHT - width)
        right, texts = left + width, one.texts
        for other in (box for box in above if box.y == line and box.x < right and box.x + box.w > left):
            if other.x <= left:
                left = min(other.x + other.w, right - HAIRLINE)
            elif other.x + other.w >= right:
                right = max(other.x, left + HAIRLINE)
            else:
                texts = ()
        fitting = [text for text in texts if len(text) <= right - left]
        return Box(left, line, right - left, 1, one.colour, max(fitting, key=len, default=""), one.mark, one.outline)

    def _merged(self, bars: Sequence[Bar]) -> list[Bar]:
        """The bars of one lane; neighbours of one colour that are too short to be distinguished are merged."""
        merged: dict[str, list[Bar]] = {}
        for one in sorted(bars, key=lambda one: one.start):
            alike = merged.setdefault(one.colour, [])
            if alike and self.x(one.start) - self.x(alike[-1].end) < APART and self._short(alike[-1], one):
                alike[-1] = joined(alike[-1], one)
            else:
                alike.append(one)
        return sorted(
            (one for alike in merged.values() for one in alike), key=lambda one: (not one.computes, one.start)
        )

    def _short(self, *bars: Bar) -> bool:
        return min(self.x(one.end) - self.x(one.start) for one in bars) < 1

    @cached_property
    def _axis(self) -> list[Shape]:
        """Below the lanes: round times, and the end of the step."""
        y, end = self.height - 0.5, self.x(self.end)
        shapes: list[Shape] = [Label(0, y, "ms", "faint")]
        for time in ticks(self.longest / MS):
            x = self.x(time * MS)
            shapes.append(tick(x, y - 0.5))
            if x <= RIGHT and not -13 - len(f"{time:g}") < x - end < 4:  # the end is written there
                shapes.append(Label(x, y, f"{time:g}", "faint", "middle"))
        shapes.append(tick(min(end, RIGHT), y - 0.5))
        shapes.append(Label(min(end, RIGHT), y, f"ends {self.end / MS:.1f}", "ink", "end"))
        return shapes
