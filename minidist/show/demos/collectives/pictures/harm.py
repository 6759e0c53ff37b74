"""A training run with the bug: its loss on the left, and on the right how far each rank's weights are off."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

import numpy as np

from minidist.show.demos.collectives.pictures import height
from minidist.show.demos.collectives.training import Harm
from minidist.show.palette import of_rank
from minidist.show.player.scene import Curve, Label, Shape


@dataclass(frozen=True)
class Line:
    """Values, one for each training step, and what is written at the end of their curve."""

    values: np.ndarray
    colour: str
    name: str


def draw(harm: Harm, with_weights: bool) -> tuple[Shape, ...]:
    """The shapes of a frame: the losses alone, or the weights next to them."""
    high = height(len(harm.drift)) - 5
    steps = len(harm.right)
    losses = [Line(harm.right, "right", "right"), Line(harm.wrong, "wrong", "bug")]
    shapes = _chart((5, 2.2, 22, high), "loss", losses, steps)
    if with_weights:
        shapes += _chart((42, 2.2, 22, high), "weights off by, %", _drift(100 * harm.drift), steps)
    return tuple(shapes)


def _drift(drift: np.ndarray) -> list[Line]:
    """A line for all ranks whose weights are the same."""
    alike = defaultdict(list)
    for rank, one in enumerate(drift):
        alike[one.tobytes()].append(rank)
    if len(alike) == 1:
        return [Line(drift[0], "wrong", "all")]
    most = max(len(ranks) for ranks in alike.values())
    return [
        Line(drift[ranks[0]], of_rank(ranks[0]), f"rank {ranks[0]}" if len(ranks) < most or most == 1 else "others")
        for ranks in alike.values()
    ]


def _chart(frame: tuple[float, float, float, float], title: str, lines: Sequence[Line], steps: int) -> list[Shape]:
    """Curves over the training steps in a frame (left, top, width, height), with axes."""
    x, y, w, h = frame
    ticks = _ticks(np.concatenate([line.values for line in lines]))

    def up(value: float) -> float:
        return y + h * (1 - (float(value) - ticks[0]) / (ticks[-1] - ticks[0]))

    shapes: list[Shape] = [
        Label(x, y - 1.2, title),
        Curve(((x, y), (x, y + h), (x + w, y + h)), "ink", 2),
        Label(x + w / 2, y + h + 1.8, "training steps", "faint", "middle"),
    ]
    for step in (0, steps // 2, steps):
        shapes.append(Label(x + w * step / steps, y + h + 0.8, str(step), "faint", "middle"))
    for tick in ticks:
        shapes.append(Label(x - 0.8, up(tick), f"{tick:g}", "faint", "end"))
        shapes.append(Curve(((x - 0.4, up(tick)), (x + 0.4, up(tick))), "ink", 2))
    for line in lines:
        points = ((x + w * step / steps, up(value)) for step, value in enumerate(line.values))
        shapes.append(Curve(tuple(points), line.colour, 5))
    lowest = 0.0  # of the names: none above another
    for line in sorted(lines, key=lambda line: -line.values[-1]):
        lowest = max(lowest + 1, up(line.values[-1]))
        shapes.append(Label(x + w + 0.6, lowest, line.name, line.colour))
    return shapes


def _ticks(values: np.ndarray) -> list[float]:
    """Round numbers around all values, at most six."""
    low, high = float(values.min()), float(values.max())
    size = 10.0 ** floor(log10(max(high - low, 1e-9)))
    size = next(size * factor for factor in (0.2, 0.5, 1, 2, 5) if (high - low) / (size * factor) <= 4)
    first, last = floor(low / size), -floor(-high / size)
    return [round(size * i, 9) for i in range(first, max(last, first + 1) + 1)]
