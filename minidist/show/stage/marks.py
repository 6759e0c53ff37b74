"""Marks: the few shapes that a picture is made of, each with keyframes on the story's clock.

The stage is 1280 wide and 600 high, in pixels of a beamer of 1280 x 720; a browser scales it to any window. Time is in
seconds at normal speed. Between two keyframes every number and every colour changes evenly.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import dist, hypot

WIDTH, HEIGHT = 1280, 600
SMALLEST = 28  # pixels: the smallest type that the last row can read
MOVING = ("x", "y", "w", "h", "fill", "opacity", "turn")  # values of a mark that may change


@dataclass
class Mark:
    """Rectangle, text or line, with its changes over time.

    Args:
        kind: "box", "text" or "line".
        keys: (moment, all changeable values at that moment), in order of time.
        still: values that never change: text, size (of its type), anchor, weight, stroke, width, points, closed, round
            (of corners), sign (a character for a terminal without colours). A box has its text in its middle.
        thing: what the mark is, such as "rank 2's term of chunk b"; shown when the pointer rests on it.
    """

    kind: str
    keys: list[tuple[float, dict]]
    still: dict = field(default_factory=dict)
    thing: str = ""

    def to(self, at: float, lasting: float = 0.0, **changes) -> "Mark":
        """Hold still until ``at``, then change evenly; return the mark, so that calls can be chained.

        A change that begins before the story, at a moment below 0, is under way or complete when the story opens.
        """
        last, now = self.keys[-1]
        if wrong := changes.keys() - set(MOVING):
            raise ValueError(f"a mark cannot change {', '.join(sorted(wrong))}: only {', '.join(MOVING)}")
        if at < 0 and last == 0:
            share = min(1.0, -at / lasting) if lasting else 1.0
            now = now | {name: between(now[name], value, share) for name, value in changes.items()}
            self.keys, at, lasting = [(0.0, now)], 0.0, max(0.0, at + lasting)
        if lasting < 0:
            raise ValueError(f"a change at {at:g} s lasts {lasting:g} s: it cannot end before it begins")
        if at < last - 1e-6:  # a change that begins where another ends may be a rounding error early
            raise ValueError(f"a change at {at:g} s begins before the last one ends, at {last:g} s")
        at = max(at, last)
        self.keys += [(at, now), (at + lasting, now | changes)]
        return self

    def begin(self, **values) -> "Mark":
        """Set values that hold from the beginning; call it before any change."""
        self.keys[0] = (self.keys[0][0], self.keys[0][1] | values)
        return self

    def enter(self, at: float, lasting: float = 0.3) -> "Mark":
        """Fade in at ``at``, invisible until then; call it before any other change."""
        return self.begin(opacity=0).to(at, lasting, opacity=1)

    def leave(self, at: float, lasting: float = 0.3) -> "Mark":
        return self.to(at, lasting, opacity=0)

    def trace(self, at: float, lasting: float) -> "Mark":
        """Draw a line from its start to its end; each piece between two points takes the same time."""
        points = self.still["points"]
        lengths, drawn = [dist(*pair) for pair in pairwise(points)], 0.0
        self.begin(turn=drawn)
        for number, length in enumerate(lengths):
            drawn += length / (sum(lengths) or 1.0)
            share = 1 if number + 1 == len(lengths) else drawn
            self.to(at + lasting * number / len(lengths), lasting / len(lengths), turn=share)
        return self

    @property
    def now(self) -> dict:
        """Values after the last change."""
        return self.keys[-1][1]

    def at(self, moment: float) -> dict:
        """Return the values at a moment."""
        before = self.keys[0]
        for key in self.keys:
            if key[0] > moment:
                share = (moment - before[0]) / (key[0] - before[0])
                return {name: between(value, key[1][name], share) for name, value in before[1].items()}
            before = key
        return before[1]


def drawn(mark: Mark, now: dict) -> list[tuple[float, float]]:
    """Return the points of a line up to the share of its length that is drawn, ``turn``."""
    points = [(x + now["x"], y + now["y"]) for x, y in mark.still["points"]]
    points += points[:1] * mark.still["closed"]
    left = now["turn"] * sum(dist(*pair) for pair in pairwise(points))
    found = points[:1]
    for one, other in pairwise(points):
        length = dist(one, other)
        if length > left:
            share = left / length
            return [*found, (one[0] + (other[0] - one[0]) * share, one[1] + (other[1] - one[1]) * share)]
        found.append(other)
        left -= length
    return found


def head_of(points: Sequence[tuple[float, float]], width: float) -> list[tuple[float, float]]:
    """Return the corners of an arrow's head at the end of a line."""
    (x0, y0), (x, y) = points[-2:]
    length = hypot(x - x0, y - y0) or 1.0
    dx, dy, size = (x - x0) / length, (y - y0) / length, 3 * width
    base = x - size * dx, y - size * dy
    return [
        (x, y),
        (base[0] - size / 2 * dy, base[1] + size / 2 * dx),
        (base[0] + size / 2 * dy, base[1] - size / 2 * dx),
    ]


def between(one, other, share: float):
    """Interpolate between two numbers or colours; a named colour changes in the middle."""
    if isinstance(one, str):
        if one == other or not (one.startswith("#") and other.startswith("#")):
            return one if share < 0.5 else other
        parts = ([int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in (one, other))
        return "#" + "".join(f"{round(a + (b - a) * share):02X}" for a, b in zip(*parts, strict=True))
    return one + (other - one) * share


def box(x: float, y: float, w: float, h: float, fill: str = "faint", thing: str = "", **still) -> Mark:
    """Make a rectangle with its upper left corner at (x, y) and ``text`` in its middle. fill: "none" for an outline."""
    if "text" in still:
        still = {"size": SMALLEST} | still
    return Mark("box", [(0.0, dict(x=x, y=y, w=w, h=h, fill=fill, opacity=1))], still, thing)


def text(x: float, y: float, words: str, size: float = SMALLEST, fill: str = "ink", anchor: str = "middle", **still):
    """Make a text. (x, y) is in the middle of its height, and at its start, middle or end as ``anchor`` says."""
    still = {"text": words, "size": size, "anchor": anchor} | still
    return Mark("text", [(0.0, dict(x=x, y=y, fill=fill, opacity=1))], still)


def line(points, fill: str = "faint", width: float = 3, closed: bool = False, **still) -> Mark:
    """Make a line through points (x, y). ``turn``, 0 to 1, is the share that is drawn; ``head`` makes it an arrow."""
    points = [(round(x, 1), round(y, 1)) for x, y in points]
    still = {"points": points, "width": width, "closed": closed} | still
    if still.pop("head", False):
        tip, *base = head_of(points, width)
        still["head"] = [(round(x, 1), round(y, 1)) for x, y in (tip, *base)]
        (x0, y0), (x1, y1) = base
        points[-1] = round((x0 + x1) / 2, 1), round((y0 + y1) / 2, 1)  # a line to the tip would cover it
    return Mark("line", [(0.0, dict(x=0, y=0, fill=fill, opacity=1, turn=1))], still)


def counter(x: float, y: float, name: str, values: Sequence[tuple[float, str]], size: float = 110) -> list[Mark]:
    """Return the marks of a changing number centred on (x, y).

    Args:
        name: label below the number, of one or more lines.
        values: (moment from which on it is shown, number as text).
    """
    marks = []
    for number, (at, value) in enumerate(values):
        mark = text(x, y, value, size, weight=700)
        if number:
            mark.enter(at, 0)
        if number + 1 < len(values):
            mark.leave(values[number + 1][0], 0)
        marks.append(mark)
    words = name.split("\n") if name else []
    return marks + [text(x, y + size * 0.75 + i * SMALLEST * 1.2, word) for i, word in enumerate(words)]
