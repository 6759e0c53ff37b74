"""Where the ranks stand: on a circle, on the levels of a tree, or opposite rank 0."""

from dataclasses import dataclass
from math import cos, pi, sin

from minidist.show.demos.collectives.pictures import MIDDLE, height
from minidist.show.player.scene import Curve

ACROSS = 12  # characters from the middle of the circle to a rank; a line is twice as high as a character is wide
Point = tuple[float, float]


@dataclass(frozen=True)
class Places:
    """The left half of the picture.

    Args:
        ranks: the middle of each rank's box.
        stops: the middle of what each rank sends or has received.
        links: curves that messages travel on, drawn below everything.
    """

    ranks: tuple[Point, ...]
    stops: tuple[Point, ...]
    links: tuple[Curve, ...]


def circle(ranks: int) -> Places:
    """Rank 0 at the top, the others clockwise."""
    turns = [rank / ranks for rank in range(ranks)]
    track = tuple(_around(i / 48, ranks) for i in range(49))
    return Places(
        tuple(_around(turn, ranks) for turn in turns),
        tuple(_around(turn, ranks, _inside(ranks)) for turn in turns),
        (Curve(track, "faint", 2),),
    )


def fan(ranks: int) -> Places:
    """Rank 0 on the left, the others below each other on the right: every message is rank 0's."""
    lines = height(ranks)
    places = [(4.0, lines / 2)]
    places += [(MIDDLE - 5.0, 1.2 + (rank - 0.5) * (lines - 1.2) / (ranks - 1)) for rank in range(1, ranks)]
    stops = [(places[0][0] + 6.2, places[0][1]), *((x - 6.2, y) for x, y in places[1:])]
    links = tuple(Curve((places[0], place), "faint", 2) for place in places[1:])
    return Places(tuple(places), tuple(stops), links)


def tree(ranks: int) -> Places:
    """A binomial tree: rank r is on the level of the step in which it receives the array, below its sender."""
    levels = (ranks - 1).bit_length()
    between = (height(ranks) - 3.9) / max(1, levels)  # lines from one level to the next
    places = []
    for rank in range(ranks):
        turned = sum((rank >> bit & 1) / 2 ** (bit + 1) for bit in range(levels))  # so that no two links cross
        across = turned / (1 - 0.5**levels)  # from 0 to 1
        places.append((4 + across * (MIDDLE - 9), 1.1 + between * rank.bit_length()))
    links = []
    for rank in range(1, ranks):
        sender = rank - (1 << rank.bit_length() - 1)
        links.append(Curve((places[sender], places[rank]), "faint", 2))
    return Places(tuple(places), tuple((x, y + 1.9) for x, y in places), tuple(links))


def _inside(ranks: int) -> float:
    """How far out what travels is, as a share of the circle's radius: not on the ranks, nor on each other."""
    return 0.47 if ranks <= 5 else 0.55


def _around(turn: float, ranks: int, out: float = 1.0) -> Point:
    """A place on the circle, clockwise from the top; ``out`` is its distance from the middle, in radii."""
    lines = height(ranks) / 2
    angle = 2 * pi * turn
    return MIDDLE / 2 + out * ACROSS * sin(angle), lines - out * (lines - 1.2) * cos(angle)
