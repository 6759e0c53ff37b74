"""The left half: the ranks, how much each has sent, this step's messages, and what they carry."""

from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from minidist.show.demos.collectives.pictures.cells import colours
from minidist.show.demos.collectives.pictures.places import Places, Point
from minidist.show.demos.collectives.pictures.travel import CROWDED, Journey
from minidist.show.demos.collectives.run import Sent, Step
from minidist.show.figures.contributions import LETTERS
from minidist.show.palette import of_rank
from minidist.show.player.scene import Arrow, Box, Shape

WIDE, HIGH = 6.6, 1.1  # characters and lines of a rank's name; the bytes below it take as much
ASIDE = 0.8  # characters: an arrow keeps to its right, so that two in opposite directions are two


def draw(
    places: Places,
    step: Step,
    journeys: Sequence[Journey],
    number: int,
    wrong: np.ndarray,
    adds: bool,
    text_of: Callable[[int, int], str] | None = None,
) -> list[Shape]:
    """The shapes of the left half.

    Args:
        step: the arrays after this step, and its messages.
        journeys: the journeys of the whole run; ``number`` is that of this frame.
        wrong: (ranks, chunks) bool, where the run without the bug has something else.
        adds: whether the collective adds: then every rank's contribution has its place in what travels.
        text_of: (rank, chunk) -> what is written on what travels; by default its chunks' letters.
    """
    shapes: list[Shape] = list(places.links)
    for rank, ((x, y), nbytes) in enumerate(zip(places.ranks, step.nbytes, strict=True)):
        shapes.append(Box(x - WIDE / 2, y - HIGH, WIDE, HIGH, of_rank(rank), f"rank {rank}", str(rank)))
        shapes.append(Box(x - WIDE / 2, y, WIDE, HIGH, "paper", f"{nbytes:,} B", " ", of_rank(rank)))
    shapes += [_arrow(message, places.ranks) for message in step.messages]
    crowd: Counter[int] = Counter()
    middle = sum(y for _, y in places.stops) / len(places.stops)
    for journey in journeys:
        if (stop := journey.at(number)) is None:
            continue
        rank, chunks = stop
        x, y = places.stops[rank]
        y += 1.9 * crowd[rank] * (1 if y <= middle + 0.01 else -1)  # towards the middle
        crowd[rank] += 1
        letters = "".join(LETTERS[chunk] for chunk in chunks)
        wide = 4.8 if len(places.ranks) <= CROWDED else 3.8
        text = (letters if len(letters) <= wide else "all") or "zero"
        if text_of is not None:
            text = text_of(rank, chunks[0] if chunks else 0)
        x, y, outline = (
            x - wide / 2,
            y - 0.8,
            "ink" if number in journey.stops and number > min(journey.stops) else "faint",
        )
        if any(wrong[rank, list(chunks)]):
            outline = "wrong"
        first = chunks[0] if chunks else 0
        shapes += [
            Box(x, y, wide, 1, "paper", text, " ", id=journey.id),
            *colours(x, y + 1, wide, 0.6, int(step.values[rank, first]), len(places.ranks), first, adds, journey.id),
            Box(x, y, wide, 1.6, None, outline=outline, id=journey.id),
        ]
    return shapes


def _arrow(message: Sent, ranks: Sequence[Point]) -> Arrow:
    """Arrow from the sender's box to the receiver's, beside the line between their middles."""
    (x, y), (to_x, to_y) = ranks[message.source], ranks[message.destination]
    across, down = to_x - x, 2 * (to_y - y)  # in characters
    length = (across**2 + down**2) ** 0.5
    aside_x, aside_y = -down / length * ASIDE, across / length * ASIDE / 2
    start, end = min(0.36, 4.2 / length), 1 - min(0.36, 4.4 / length)
    return Arrow(
        x + start * (to_x - x) + aside_x,
        y + start * (to_y - y) + aside_y,
        x + end * (to_x - x) + aside_x,
        y + end * (to_y - y) + aside_y,
        of_rank(message.source),
        label(message),
    )


def label(message: Sent) -> str:
    """Source and destination, chunks, bytes."""
    chunks = "".join(LETTERS[chunk] for chunk in message.from_chunks)
    return f"{message.source} → {message.destination} {chunks} ({message.nbytes:,} B)".replace("  ", " ")
