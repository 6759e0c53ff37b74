"""The right half: a row for each rank, a cell for each chunk, and in it whose contributions it holds."""

from collections.abc import Callable

import numpy as np

from minidist.show.demos.collectives.pictures import MIDDLE, height
from minidist.show.figures.contributions import LETTERS, held, name
from minidist.show.palette import of_rank
from minidist.show.player.scene import WIDTH, Box, Label, Shape

LEFT = MIDDLE + 8.5  # edge of the cells; to their left is the rank's name
TOP = 1.2  # lines, above the first row


def pitch(ranks: int) -> float:
    """Lines from one rank's row to the next."""
    return (height(ranks) - TOP) / max(4, ranks)


def draw(
    values: np.ndarray,
    changed: np.ndarray,
    wrong: np.ndarray,
    done: np.ndarray,
    columns: str,
    adds: bool,
    text_of: Callable[[int, int], str] | None = None,
) -> list[Shape]:
    """The shapes of the right half.

    Args:
        values: (ranks, chunks), marked as in show/figures/contributions.py.
        changed, wrong, done: (ranks, chunks) bool: whether this step changed it, whether the run without the bug has
            something else, and whether it is the result.
        columns: the heading of a column, with a place for its letter.
        adds: whether the collective adds: then every rank's contribution has its place in a cell.
        text_of: (rank, chunk) -> a text above the contributions, such as their sum.
    """
    ranks, chunks = values.shape
    width = (WIDTH - LEFT) / chunks
    heading = columns if width > 7.5 else "{}"
    shapes: list[Shape] = [
        Label(LEFT + (chunk + 0.5) * width, 0.55, heading.format(LETTERS[chunk]), "faint", "middle")
        for chunk in range(chunks)
    ]
    high = min(2.6, pitch(ranks) - 0.4)
    for rank in range(ranks):
        y = TOP + rank * pitch(ranks)
        shapes.append(Label(LEFT - 1, y + high / 2, f"rank {rank}", of_rank(rank), "end"))
        for chunk in range(chunks):
            x, value = LEFT + chunk * width, int(values[rank, chunk])
            outline = "faint"
            for holds, colour in ((done, "right"), (changed, "ink"), (wrong, "wrong")):
                outline = colour if holds[rank, chunk] else outline
            if wrong[rank, chunk] and not adds:  # nobody's colour, and the text says whose it is
                shapes.append(Box(x, y, width - 0.7, high, "wrong", name(value, ranks) if value else "0", "!"))
            else:
                text = text_of(rank, chunk) if text_of else None
                above = 0.55 * high if text else 0
                if text:
                    shapes.append(Box(x, y, width - 0.7, above, "paper", text, " "))
                shapes += colours(x, y + above, width - 0.7, high - above, value, ranks, chunk, adds)
            shapes.append(Box(x, y, width - 0.7, high, None, outline=outline))
            if done[rank, chunk] and high > 2:
                shapes.append(Box(x + width - 2.2, y, 1.5, 0.8, "right", "✓", "v"))
    return shapes


def colours(
    x: float, y: float, w: float, h: float, value: int, ranks: int, column: int, adds: bool, id: str = ""
) -> list[Shape]:
    """Whose contributions a value has: a stripe for each in a sum, or else a whole box."""
    pairs = held(value, ranks)
    if adds or len(pairs) != 1:
        return _stripes(x, y, w, h, value, ranks, column, id)
    return [Box(x, y, w, h, of_rank(pairs[0][0]), name(value, ranks) if h >= 1 else "", str(pairs[0][0]), id=id)]


def _stripes(x: float, y: float, w: float, h: float, value: int, ranks: int, column: int, id: str) -> list[Shape]:
    """A stripe for each contribution to chunk ``column``; rank r's is the r-th from the left, and its text is r.

    Contributions to another chunk do not belong here: if there are any, all are side by side, each with its letter.
    """
    pairs = held(value, ranks)
    strays = any(chunk != column for _, chunk in pairs)
    count = len(pairs) if strays else ranks
    stripe = w / max(1, count)
    found: list[Shape] = [Box(x, y, w, h, "paper", "", " ", id=id)] if len(pairs) < count or not pairs else []
    for number, (rank, chunk) in enumerate(pairs):
        texts = [f"{LETTERS[chunk]}{rank}"] if strays else []
        texts.append(LETTERS[chunk] if chunk != column else str(rank))  # a stray's letter says more than its rank
        text = next((one for one in texts if len(one) <= stripe + 0.1 and h >= 1), "")
        place = number if strays else rank
        found.append(Box(x + place * stripe, y, stripe, h, of_rank(rank), text, str(rank), id=id))
    return found
