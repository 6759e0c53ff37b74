"""A pipeline as planned, in slots, and below as it ran; a cover hides what has not happened yet.

A row is a rank, a cell is an action with the number of its micro-batch, and the grey between cells is the bubble.
"""

from collections.abc import Collection, Mapping, Sequence
from math import floor

from minidist.parallel.tools.schedule_check import Slot, bubble
from minidist.parallel.tools.schedules import Action
from minidist.show.palette import of_rank
from minidist.show.pipelines import COLOURS, strength
from minidist.show.player.scene import WIDTH, Box, Label, Shape

LEFT, RIGHT = 7, 71.5  # start and end of time; the rank's name is to the left
GAP = 0.2  # between two cells, in characters


def height(ranks: int) -> float:
    return 2 * _panel(ranks)


def _panel(ranks: int) -> float:
    return 1 + ranks * _pitch(ranks)


def _pitch(ranks: int) -> int:
    """Lines from one rank's row to the next."""
    return 2 if ranks <= 3 else 1


def panels(
    planned: Sequence[Sequence[Slot]], ran: Sequence[Sequence[Slot]], titles: tuple[str, str], mistaken: Mapping,
    corrupted: Collection[Action],
) -> list[tuple[float, Shape]]:  # fmt: skip
    """All shapes of both panels, each over the full width, with the share of its time after which they appear.

    Args:
        planned, ran: for each rank its actions and their times, from 0 on.
        titles: of the two panels; the bubble of each is added.
        mistaken: action -> the wrong micro-batch that it takes.
        corrupted: actions with a wrong result because of those.
    """
    ranks, shapes = len(planned), []
    for place, (rows, title) in enumerate(zip((planned, ran), titles, strict=True)):
        top = place * _panel(ranks)
        end = max(slot.end for row in rows for slot in row)
        shapes.append((-1.0, Label(0, top + 0.5, f"{title}: bubble {bubble(rows):.1%}", "ink")))
        for rank, row in enumerate(rows):
            y, h = top + 1 + rank * _pitch(ranks), _row(ranks)
            shapes.append((-1.0, Label(0, y + h / 2, f"rank {rank}", of_rank(rank))))
            shapes.append((-1.0, Box(LEFT, y, RIGHT - LEFT, h, "faint", mark="·")))
            shapes += [(slot.start / end, _cell(slot, y, h, end, ranks, mistaken, corrupted)) for slot in row]
    return shapes


def until(share: float, shapes: Sequence[tuple[float, Shape]], ranks: int) -> tuple[Shape, ...]:
    """What is visible after this share of the time, 0 to 1. A cover hides the rest of the rows, and of unfinished
    cells."""
    begun = tuple(shape for start, shape in shapes if start < share)
    x = LEFT + share * (RIGHT - LEFT)
    if share == 1:
        return begun
    height_of_rows = ranks * _pitch(ranks)
    return (*begun, *(Box(x, p * _panel(ranks) + 1, WIDTH - x, height_of_rows, "paper", mark=" ") for p in (0, 1)))


def _row(ranks: int) -> float:
    """The height of a row. A terminal draws it one line high, or one and a half."""
    return 1.5 if _pitch(ranks) == 2 else 0.9


def _cell(slot: Slot, y: float, h: float, end: float, ranks: int, mistaken: Mapping, corrupted: Collection) -> Box:
    action, scale = slot.action, (RIGHT - LEFT) / end
    x, w = LEFT + slot.start * scale, _width(LEFT + slot.start * scale, LEFT + slot.end * scale)
    if action in mistaken:
        return Box(x, y, w, h, "wrong", str(mistaken[action]), "!")
    outline = "wrong" if action in corrupted else None
    return Box(x, y, w, h, colour_of(action, ranks), str(action.micro_batch), action.kind, outline)


def _width(x: float, end: float) -> float:
    """The width of a cell from x to the end, less a gap. The gap is smaller where a terminal, which rounds, would draw
    it as a full column: a column between cells means idle time."""
    cut = max(end - GAP, (x + end) / 2)
    half = floor(end) + 0.51
    return (half if cut < half <= end else cut) - x


def colour_of(action: Action, ranks: int) -> str:
    """The colour of its kind on white, paler for the later stages of a rank."""
    share, colour = strength(action, ranks), COLOURS[action.kind]
    parts = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(255 - share * (255 - part)):02X}" for part in parts)
