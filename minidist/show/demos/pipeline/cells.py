"""An action as a cell: its place in time, its colour, and what is wrong with it."""

from collections.abc import Collection, Mapping
from math import floor

from minidist.parallel.tools.schedule_check import Slot
from minidist.show.pipelines import colour_of
from minidist.show.player.scene import Box

GAP = 0.2  # between two cells, in characters
NUMBERED = 0.7  # characters: a narrower cell has no room for its number; in this one, a digit reaches over the gap


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


def _width(x: float, end: float) -> float:
    """The width of a cell from x to the end, less a gap. The gap is smaller where a terminal, which rounds, would draw
    it as a full column: a column between cells means idle time."""
    cut = max(end - GAP, (x + end) / 2)
    half = floor(end) + 0.51
    return (half if cut < half <= end else cut) - x
