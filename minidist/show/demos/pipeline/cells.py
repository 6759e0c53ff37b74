"""An action as a cell: its place in time, its colour, and what is wrong with it."""

from collections.abc import Collection, Mapping
from math import floor

from minidist.parallel.tools.schedule_check import Slot
from minidist.show.figures.pipelines import colour_of
from minidist.show.palette import ON_LIGHT
from minidist.show.player.scene import Box, Label

GAP = 0.2  # between two cells, in characters
NUMBERED = 0.8  # characters: a narrower cell has no room for its number beside those of its neighbours
DIGIT = 0.4  # characters: the least to which a digit alone can belong
LINE = 0.75  # lines for a number; two of them fit a tall cell


def cell(
    slot: Slot, ranks: int, x: float, end: float, y: float, h: float, mistaken: Mapping = {}, corrupted: Collection = ()
) -> Box:  # fmt: skip
    """The box of an action from x to the end.

    Args:
        mistaken: action -> the wrong micro-batch that it takes.
        corrupted: actions with a wrong result because of those.
    """
    action, w = slot.action, _width(x, end)
    if action in mistaken:
        return Box(x, y, w, h, "wrong", str(mistaken[action]), "!", id=f"micro-batch {mistaken[action]}")
    outline = "wrong" if action in corrupted else None
    text = str(action.micro_batch) if end - x > NUMBERED else ""
    return Box(x, y, w, h, colour_of(action, ranks), text, action.kind, outline, f"micro-batch {action.micro_batch}")


def number(slot: Slot, box: Box) -> list[Label]:
    """The number of a narrow but tall cell, in which those of neighbours are in turn above and below each other."""
    digit = str(slot.action.micro_batch)
    is_light = slot.action.kind == "F" and box.fill != "wrong"
    if box.text or not is_light or len(digit) > 1 or box.h < 2 * LINE or box.w < DIGIT:
        return []
    y = box.y + box.h / 2 + LINE / 2 * (slot.action.micro_batch % 2 * 2 - 1)
    return [Label(box.x + box.w / 2, y, digit, ON_LIGHT, "middle")]


def _width(x: float, end: float) -> float:
    """The width of a cell from x to the end, less a gap. The gap is smaller where a terminal, which rounds, would draw
    it as a full column: a column between cells means idle time."""
    cut = max(end - GAP, (x + end) / 2)
    half = floor(end) + 0.51
    return (half if cut < half <= end else cut) - x
