"""A training run with the bug: its loss, how far each rank's weights are off, and the wrong chunks that did it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor, log10

import numpy as np

from minidist.show.demos.collectives.pictures import height
from minidist.show.demos.collectives.training import Harm
from minidist.show.player.scene import WIDTH, Box, Curve, Label, Shape

GRID = 56  # left edge of the small grid
SAME = "looks the same"
ALIKE = 0.02  # of an axis: curves that are nowhere farther apart look the same


@dataclass(frozen=True)
class Line:
    """Values, one for each training step, and what is written at the end of their curve."""

    values: np.ndarray
    colour: str
    name: str


def draw(harm: Harm, with_weights: bool, wrong: np.ndarray, defined: np.ndarray) -> tuple[Shape, ...]:
    """The shapes of a frame: the losses alone, or the weights next to them.

    Args:
        wrong, defined: (ranks, chunks) bool, of the collective's result: where it is wrong, and where there is one.
    """
    high = height(len(harm.drift)) - 5
    steps = len(harm.right)
    losses = [Line(harm.right, "right", "right"), Line(harm.wrong, "wrong", "bug")]
    shapes = _chart((5, 2.2, 16, high), "loss", losses, steps)
    if with_weights:
        shapes += _chart((33, 2.2, 14, high), "weights off by, %", _drift(100 * harm.drift), steps)
    return (*shapes, *_grid(wrong, defined, 2.2, min(high, 1.6 * len(wrong))))


def _grid(wrong: np.ndarray, defined: np.ndarray, top: float, high: float) -> list[Shape]:
    """The collective's result, small: a row for each rank, a cell for each chunk."""
    ranks, chunks = wrong.shape
    w, h = (WIDTH - GRID) / chunks, high / ranks
    shapes: list[Shape] = [Label(GRID, top - 1.2, "result of a call")]
    for rank, chunk in np.ndindex(ranks, chunks):
        fill, mark = (
            ("wrong", "!") if wrong[rank, chunk] else ("right", "=") if defined[rank, chunk] else ("faint", " ")
        )
        shapes.append(Box(GRID + chunk * w, top + rank * h, w - 0.3, h - 0.2, fill, "", mark))
    return shapes


def _drift(drift: np.ndarray) -> list[Line]:
    """A line for all ranks whose weights are the same; red is the one that is farthest off."""
    alike = defaultdict(list)
    for rank, one in enumerate(drift):
        alike[one.tobytes()].append(rank)
    if len(alike) == 1:
        return [Line(drift[0], "wrong", "all")]
    most, farthest = max(len(ranks) for ranks in alike.values()), drift[:, -1].max()
    return [
        Line(
            drift[ranks[0]],
            "wrong" if drift[ranks[0], -1] == farthest else "ink",
            f"rank {ranks[0]}" if len(ranks) < most or most == 1 else "others",
        )
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
    apart = max(float(np.abs(line.values - lines[0].values).max()) for line in lines)
    if len(lines) > 1 and apart < ALIKE * (ticks[-1] - ticks[0]):
        shapes += [
            Label(x + 0.35 * w, y + 0.2 + line, text, "wrong") for line, text in enumerate((f"the {title}", SAME))
        ]
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
