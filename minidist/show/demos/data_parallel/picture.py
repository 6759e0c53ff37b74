"""The picture of data parallelism: rank 0's compute and network, and below them the race of the three ways to sum.

Everything is to scale on one axis of time. What has not happened yet is covered.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from minidist.show.demos.data_parallel.steps import Step
from minidist.show.demos.shared import lanes
from minidist.show.demos.shared.lanes import COLOURS, GAP, HAIRLINE, MARKS, MS
from minidist.show.player.scene import WIDTH, Box, Label, Shape
from minidist.trace import Event

LEFT, RIGHT = 12, 63  # characters: where time begins, and where the longest step ends; its length is to the right
NETWORK = "network"


@dataclass(frozen=True)
class Axis:
    """Time, from left to right.

    Args:
        longest: ns, of the longest step that is shown.
    """

    longest: int

    def x(self, time: float) -> float:
        return LEFT + (RIGHT - LEFT) * min(time, self.longest) / self.longest

    def box(self, start: int, end: int, y: float, h: float, kind: str, texts: Sequence[str], name: str) -> Box:
        """A stretch of time, as wide as it is long; the longest text that fits is on it."""
        x, w = self.x(start), self.x(end) - self.x(start)
        w = max(HAIRLINE, w - min(GAP, w / 4))
        text = max((text for text in texts if len(text) <= w), key=len, default="")
        return Box(x, y, w, h, COLOURS[kind], text, MARKS[kind], id=name)

    def ticks(self, y: float) -> list[Shape]:
        shapes: list[Shape] = [Label(LEFT - 2, y + 0.5, "ms", "faint", "end")]
        for time in lanes.ticks(self.longest / MS):
            x = self.x(time * MS)
            shapes += [lanes.tick(x, y), Label(x, y + 0.5, f"{time:g}", "faint", "middle")]
        return shapes

    def now(self, time: int, bottom: float) -> list[Shape]:
        """The cover of the future, and a cursor."""
        x = self.x(time)
        right = x < RIGHT - 9  # whether the time fits to the right of the cursor
        if time >= self.longest:
            return []
        return [
            Box(x, 1, WIDTH - x, bottom - 1, "paper", "", " "),
            Box(x, 1, 0.25, bottom - 1, "ink", "", "|"),
            Label(x + 0.12, 0.5, "▼", "ink", "middle"),
            Label(x + (1.5 if right else -1.5), 0.5, f"{time / MS:.1f} ms", "ink", "start" if right else "end"),
        ]


def computing(axis: Axis, step: Step, y: float, h: float, time: int, large: bool) -> list[Shape]:
    """What a rank has begun to compute by a time, and when it waits for the sums; ``large`` with buckets and texts."""
    forward, backward, optimizer = (step.phases[kind] for kind in ("forward", "backward", "optimizer"))
    texts = ("forward", "fwd", "F") if large else ()
    found = [(forward, axis.box(forward.start, forward.end, y, h, "forward", texts, f"{step.sync}: forward"))]
    full = [one for one in step.full if backward.start < one < backward.end] if large else []
    edges = [backward.start, *full, backward.end]
    for number, (start, end) in enumerate(pairwise(edges), 1):
        texts = (f"fills {number}", str(number)) if full else ("backward", "bwd", "B") if large else ()
        name = f"backward fills bucket {number}" if full else f"{step.sync}: backward"
        found.append((Event("", "", start, end), axis.box(start, end, y, h, "backward", texts, name)))
    if step.summed > backward.end:
        texts = ("waits", "…") if large else ()
        wait = axis.box(backward.end, step.summed, y, h, "wait", texts, f"{step.sync}: waits")
        found.append((Event("", "", backward.end, step.summed), wait))
    texts = ("optimizer", "step") if large else ()
    update = axis.box(optimizer.start, optimizer.end, y, h, "optimizer", texts, f"{step.sync}: update")
    found.append((optimizer, replace(update, outline="wrong") if step.dropped and large else update))
    return [box for event, box in found if event.start <= time and event.end > event.start]


def network(axis: Axis, step: Step, y: float, h: float, time: int, prefix: str = "") -> list[Shape]:
    """The all-reduces that have begun by a time, with their numbers; what is under backward has its own colour."""
    shapes: list[Shape] = []
    for number, event in enumerate(step.sums, 1):
        if event.start > time or lanes.is_dropped(event):
            continue
        name, middle = f"{prefix}all-reduce {number}", min(max(event.start, step.backward_ends), event.end)
        if event.start < middle:
            shapes.append(axis.box(event.start, middle, y, h, "hidden", (str(number),), name))
        if middle < event.end:
            texts = (str(number),) if middle == event.start or event.end - middle > middle - event.start else ()
            name += "" if middle == event.start else ", exposed part"
            shapes.append(axis.box(middle, event.end, y, h, "communication", texts, name))
    if step.loss.start <= time:
        shapes.append(axis.box(step.loss.start, step.loss.end, y, h, "communication", ("loss",), f"{prefix}loss"))
    return shapes


def skipped(axis: Axis, step: Step, y: float, h: float, time: int, text: str) -> list[Shape]:
    """A red line where a sum is missing, with a text below it."""
    gone = [event.start for event in step.dropped if event.start <= time]
    if not gone:
        return []
    xs = [axis.x(start) for start in gone]
    lines = [Box(x - 0.15, y, 0.3, h + 0.2, "wrong", "", "!", id="the skipped sum") for x in dict.fromkeys(xs)]
    return [*lines, *([Label(xs[0] + 0.6, y + h + 0.6, text, "wrong")] if text else [])]


class Large:
    """One way to sum, large, and the race of all three below it.

    Args:
        steps: sync -> its step, in the order of the race.
        sync: the one that is large.
        longest: ns; the end of the axis.
    """

    height = 10.6

    def __init__(self, steps: Mapping[str, Step], sync: str, longest: int) -> None:
        self.steps, self.shown, self.axis = steps, steps[sync], Axis(longest)

    def shapes(self, time: int, missing: str = "") -> list[Shape]:
        """What has happened by a time; ``missing`` says which sum is skipped."""
        step, axis = self.shown, self.axis
        shapes: list[Shape] = [Label(0, 2, "computes"), Label(0, 4.1, NETWORK)]
        shapes += computing(axis, step, 1, 2, time, large=True) + network(axis, step, 3.1, 2, time)
        for place, one in enumerate(self.steps.values()):
            y = 6.2 + 1.1 * place
            shapes.append(Label(0, y + 0.45, one.sync, "ink" if one is step else "faint"))
            shapes += computing(axis, one, y, 0.9, time, large=False)
        shapes += [*axis.ticks(9.6), *axis.now(time, 9.6)]
        for place, one in enumerate(self.steps.values()):
            if one.end <= time:
                shapes.append(Label(WIDTH, 6.65 + 1.1 * place, f"{one.end / MS:.1f} ms", anchor="end"))
        return shapes + skipped(axis, step, 3.1, 2, time, missing)


class Rows:
    """Every way to sum with its own lanes of compute and network."""

    height = 10.6

    def __init__(self, steps: Mapping[str, Step], longest: int) -> None:
        self.steps, self.axis = steps, Axis(longest)

    def shapes(self, time: int) -> list[Shape]:
        shapes: list[Shape] = []
        tops = {one.sync: 1.0 + 2.8 * place for place, one in enumerate(self.steps.values())}
        for sync, step in self.steps.items():
            y = tops[sync]
            shapes += [Label(0, y + 0.65, sync), Label(0, y + 1.85, "  network", "faint")]
            shapes += computing(self.axis, step, y, 1.25, time, large=True)
            shapes += network(self.axis, step, y + 1.3, 1.1, time, f"{sync}: ")
        shapes += [*self.axis.ticks(9.6), *self.axis.now(time, 9.6)]
        for sync, step in self.steps.items():
            shapes += skipped(self.axis, step, tops[sync] + 1.3, 0.9, time, "")
            if step.end <= time:
                shapes.append(Label(WIDTH, tops[sync] + 0.65, f"{step.end / MS:.1f} ms", anchor="end"))
        return shapes
