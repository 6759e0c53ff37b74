"""One moment of a ring of ranks: on the left who waits for whom, on the right the call that each rank is in.

A rank that waits is the beginning of an arrow to the rank that it waits for. Arrows follow the ring, so that a cycle of
waiting ranks is a closed ring.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from math import atan2, cos, pi, sin

from minidist.analysis.traffic import FINISHED, PATIENT, RUNNING, STUCK, state_of
from minidist.show.demos.deadlock.run import Moment
from minidist.show.figures.waits import OF_STATES
from minidist.show.palette import MEANINGS
from minidist.show.player.scene import Arrow, Box, Curve, Label, Shape

WORDS = {RUNNING: "can act", PATIENT: "waits", STUCK: "waits forever", FINISHED: "finished"}
COLOURS = {state: MEANINGS[meaning] for state, meaning in OF_STATES.items()}
KEY = {word: COLOURS[state] for state, word in WORDS.items()}
MARKS = {RUNNING: "+", PATIENT: ".", STUCK: "X", FINISHED: " "}
HEIGHT = 12
MIDDLE = 21, HEIGHT / 2  # of the ring
RADII = 17, HEIGHT / 2 - 0.9  # across and down
NODE = 6, 1.7  # width and height of a rank on it
CALLS = 46, 26  # left edge and width of the calls
PIECES = 24  # straight pieces of an arrow
THIN, THICK, CLOSED = 2, 6, 10  # pixels: the ring, an arrow, and one in a closed ring
HEAD, OPEN = 2, pi / 5  # of an arrow: how long, in characters, and the angle of each side to it


def draw(ranks: int, moment: Moment, deadlock: bool) -> tuple[Shape, ...]:
    """The shapes of one moment; ``deadlock``: whether the parent has ended the run."""
    states = {rank: state_of(rank, first_of(moment.waiting), moment.finished) for rank in range(ranks)}
    shapes: list[Shape] = [Curve(_arc(0, 2 * pi), "faint", THIN)]
    for rank, others in moment.waiting.items():
        for other in others:
            shapes += _arrow(ranks, rank, other, states[rank])
    shapes += _nodes(states)
    shapes += _calls(moment.calls, moment.finished, states)
    if deadlock:
        shapes.append(Box(MIDDLE[0] - 7, MIDDLE[1] - 0.9, 14, 1.8, "wrong", "DEADLOCK", "!"))
    return tuple(shapes)


def first_of(waiting: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """Rank -> the first of the ranks it waits for: enough to find a cycle if each rank waits for one."""
    return {rank: awaited[0] for rank, awaited in waiting.items()}


def _nodes(states: Mapping[int, str]) -> Iterator[Shape]:
    w, h = NODE
    for rank, state in states.items():
        x, y = _at(_angle(rank, len(states)))
        colour, outline = COLOURS[state], "wrong" if state == STUCK else "paper"
        yield Box(x - w / 2, y - h / 2, w, h, colour, str(rank), MARKS[state], outline, f"rank {rank}")


def _calls(calls: Mapping[int, str], finished: Set[int], states: Mapping[int, str]) -> Iterator[Shape]:
    x, width = CALLS
    pitch = 2 if len(states) <= 6 else HEIGHT / 8
    top = (HEIGHT - pitch * len(states)) / 2
    for rank, state in states.items():
        y, text = top + rank * pitch, "ended" if rank in finished else calls.get(rank, "no call yet")
        yield Label(x - 1, y + 0.4 * pitch, str(rank), "ink", "end")
        yield Box(x, y, width, 0.8 * pitch, COLOURS[state], text, MARKS[state], None, f"call of rank {rank}")


def _angle(rank: int, ranks: int) -> float:
    """Clockwise from the top."""
    return 2 * pi * rank / ranks


def _at(angle: float) -> tuple[float, float]:
    return MIDDLE[0] + RADII[0] * sin(angle), MIDDLE[1] - RADII[1] * cos(angle)


def _arc(start: float, end: float) -> tuple[tuple[float, float], ...]:
    return tuple(_at(start + (end - start) * piece / PIECES) for piece in range(PIECES + 1))


def _arrow(ranks: int, rank: int, awaited: int, state: str) -> list[Shape]:
    """Along the ring, from the border of one rank to that of the other."""
    clockwise = awaited == (rank + 1) % ranks
    start = _angle(rank, ranks)
    end = start + (2 * pi / ranks if clockwise else -2 * pi / ranks)
    line = [point for point in _arc(start, end) if _outside(point, start) and _outside(point, end)]
    colour, width = ("wrong", CLOSED) if state == STUCK else (COLOURS[state], THICK)
    arrow = Arrow(*line[-2], *line[-1], colour, f"{rank} waits for {awaited}")  # a terminal lists it; a page covers it
    return [arrow, Curve(tuple(line), colour, width), Curve(_head(line[-4], line[-1]), colour, width)]


def _head(before: tuple[float, float], tip: tuple[float, float]) -> tuple[tuple[float, float], ...]:
    """Both sides of an arrow's head. A line is as high as two characters are wide."""
    angle = atan2(2 * (tip[1] - before[1]), tip[0] - before[0])
    sides = [(tip[0] - HEAD * cos(angle + turn), tip[1] - HEAD * sin(angle + turn) / 2) for turn in (-OPEN, OPEN)]
    return sides[0], tip, sides[1]


def _outside(point: tuple[float, float], angle: float) -> bool:
    """Whether a point is outside the rank at this place of the ring."""
    x, y = _at(angle)
    return abs(point[0] - x) > NODE[0] / 2 + 0.3 or abs(point[1] - y) > NODE[1] / 2 + 0.15
