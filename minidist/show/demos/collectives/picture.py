"""One step of a collective: a row for each rank, a cell for each chunk, an arrow for each message."""

from collections.abc import Sequence

import numpy as np

from minidist.show.contributions import held, name
from minidist.show.demos.collectives.run import Sent
from minidist.show.palette import of_rank
from minidist.show.player.scene import Arrow, Box, Label, Shape

LEFT, RIGHT = 8, 60  # edges of the cells; to their left is the rank's name, to their right its bytes


def height(ranks: int) -> float:
    return 1 + ranks * pitch(ranks)


def pitch(ranks: int) -> float:
    """Lines from one rank's row to the next: two for a cell, and some room for arrows."""
    return 3 if ranks <= 5 else 2.25


def draw(
    values: np.ndarray,
    before: np.ndarray,
    messages: Sequence[Sent],
    nbytes: Sequence[int],
    wrong: np.ndarray,
    columns: str,
) -> tuple[Shape, ...]:
    """The shapes of one frame.

    Args:
        values: (ranks, chunks), marked as in show/contributions.py.
        before: the same, one frame earlier; cells that changed get an outline.
        messages: of this step.
        nbytes: what each rank has sent so far.
        wrong: (ranks, chunks) bool, where the run without the bug has something else.
        columns: the heading of a column, with a place for its letter.
    """
    ranks, chunks = values.shape
    width = (RIGHT - LEFT) / chunks
    heading = columns if width > 8 else "{}"
    shapes: list[Shape] = [
        Label(LEFT + (chunk + 0.5) * width - 0.3, 0.5, heading.format("abcdefgh"[chunk]), "faint", "middle")
        for chunk in range(chunks)
    ]
    shapes.append(Label(71.5, 0.5, "sent", "faint", "end"))
    for rank in range(ranks):
        top = _top(rank, ranks)
        shapes.append(Label(0, top + 1, f"rank {rank}", of_rank(rank)))
        shapes.append(Label(71.5, top + 1, f"{nbytes[rank]:,} B", "ink", "end"))
        for chunk in range(chunks):
            changed = values[rank, chunk] != before[rank, chunk]
            shapes += _cell(
                LEFT + chunk * width, top, width - 0.6, values[rank, chunk], ranks, changed, wrong[rank, chunk]
            )
    return (*shapes, *(_arrow(message, ranks, width) for message in messages))


def _top(rank: int, ranks: int) -> float:
    return 1 + rank * pitch(ranks)


def _cell(x: float, y: float, w: float, value: int, ranks: int, changed: bool, wrong: bool) -> list[Shape]:
    """The name of what the cell holds, and below it a stripe for each contribution."""
    pairs = held(value, ranks)
    outline = "wrong" if wrong else "ink" if changed else None
    cell: list[Shape] = [Box(x, y, w, 1, "paper", name(value, ranks) or "·", " ")]
    stripe = w / max(1, len(pairs))
    for i, (rank, _) in enumerate(pairs):
        cell.append(Box(x + i * stripe, y + 1, stripe, 1, of_rank(rank), "", str(rank)))
    if not pairs:
        cell.append(Box(x, y + 1, w, 1, "paper", "", " "))
    return [*cell, Box(x, y, w, 2, None, outline=outline or "faint")]


def _arrow(message: Sent, ranks: int, width: float) -> Arrow:
    down = message.destination > message.source
    x, to_x = (_middle(chunks, width) for chunks in (message.from_chunks, message.to_chunks))
    from_y = _top(message.source, ranks) + (1.9 if down else 0.1)
    to_y = _top(message.destination, ranks) + (0.1 if down else 1.9)
    far = abs(message.destination - message.source) > 1
    bend = 0.42 * width if far and x == to_x else 0.0  # around the cells in between
    return Arrow(x, from_y, to_x, to_y, of_rank(message.source), label(message), bend)


def label(message: Sent) -> str:
    """Source and destination, chunks, bytes."""
    chunks = "".join("abcdefgh"[chunk] for chunk in message.from_chunks)
    return f"{message.source} → {message.destination} {chunks} ({message.nbytes:,} B)".replace("  ", " ")


def _middle(chunks: tuple[int, ...], width: float) -> float:
    """The middle of these chunks; of the row, if there are none."""
    if not chunks:
        return (LEFT + RIGHT) / 2
    return LEFT + (sum(chunks) / len(chunks) + 0.5) * width - 0.3
