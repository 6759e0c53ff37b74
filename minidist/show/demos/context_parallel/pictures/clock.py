"""The right part of a picture: the time of all ranks on one axis, on which idle time is grey."""

from collections.abc import Collection, Mapping

from minidist.show.demos.context_parallel.pictures.matrix import SIDE, TOP
from minidist.show.demos.context_parallel.run import Pass
from minidist.show.palette import of_rank
from minidist.show.player.scene import Box, Curve, Label, Shape

LEFT, RIGHT = 57.5, 71.3


def draw(
    run: Pass, now: float, longest: int, wrong: Collection[tuple[int, int]] = (), ends: Mapping[str, int] | None = None
) -> list[Shape]:
    """What each rank has done by slot ``now``.

    Args:
        longest: slots of the slowest run: all runs have its scale.
        wrong: (hop, rank) of visits with wrong keys.
        ends: name -> the slot in which each of the runs has ended, to be marked, once this one has.
    """
    scale, pitch = (RIGHT - LEFT) / longest, SIDE / run.ranks
    high, shapes = min(1.8, pitch - 0.2), []
    if not ends:
        shapes.append(Label(LEFT, 0.8, "time →", "ink"))
    for rank in range(run.ranks):
        y, free = TOP + rank * pitch + (pitch - high) / 2, 0
        shapes.append(Label(LEFT - 0.6, y + high / 2, str(rank), of_rank(rank), "end"))
        for hop, (times, visits) in enumerate(zip(run.times(), run.visits, strict=True)):
            start, stop = times[rank]
            if not visits[rank].pairs or start >= now:
                continue
            shapes += _idle(y, high, scale, free, start)
            fill, mark = ("wrong", "!") if (hop, rank) in wrong else (of_rank(rank), "=")
            # No gap between two: a terminal would round it to a column of idle time.
            width = scale * (min(now, stop) - start)
            text = str(hop) if high >= 1 and width >= 1 else ""
            shapes.append(Box(LEFT + scale * start, y, width, high, fill, text, mark, "faint"))
            free = stop
        shapes += _idle(y, high, scale, free, min(now, run.end(-1)))
    shapes += _axis(scale, longest, run.end(-1), ends or {})
    return shapes


def _idle(y: float, high: float, scale: float, start: float, stop: float) -> list[Shape]:
    if stop <= start:
        return []
    width = scale * (stop - start)
    return [Box(LEFT + scale * start, y, width, high, "faint", "idle" if width >= 3.8 else "", ".")]


def _axis(scale: float, longest: int, end: int, ends: Mapping[str, int]) -> list[Shape]:
    """Its first and last slot; and the end of each run as a line through all lanes, with the names of the others."""
    y = TOP + SIDE
    shapes: list[Shape] = [Curve(((LEFT, y), (RIGHT, y)), "ink", 2)]
    for slot in sorted({0, longest, *ends.values()}):
        shapes.append(Label(min(LEFT + scale * slot, RIGHT - 0.5), y + 0.7, str(slot), "ink", "middle"))
    for name, slot in ends.items():
        x = LEFT + scale * slot
        shapes.append(Curve(((x, TOP - 0.2), (x, y)), "ink", 4))
        if slot != end:
            shapes.append(Label(max(x, LEFT + len(name) / 2), 0.8, name, "ink", "end" if x > RIGHT - 5 else "middle"))
    return shapes
