"""The left part of a picture: the ranks on a circle, each with its queries, and what goes round."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import cos, pi, sin

from minidist.show.palette import of_rank
from minidist.show.player.scene import Arrow, Box, Curve, Shape

HEIGHT = 13.0  # lines, of all pictures of a ring
MIDDLE = 14.0, 6.5  # of the circle; a line is twice as high as a character is wide
ACROSS, DOWN = 10.2, 5.3  # its radii
WIDE, HIGH = 7.4, 1.1  # of a rank's name; its queries below it take as much
FEW = 5  # ranks: with more, what travels has no room for a long name
INSIDE = 0.33, 0.5  # how far out what travels is, across and down, in radii; farther if there are more ranks
CROWDED = 0.46, 0.62
KEYS, GRADIENTS = "KV", "dKV"  # what travels: keys and values, or their gradients


@dataclass(frozen=True)
class Traveller:
    """What goes round: keys and values, or their gradients.

    Args:
        kind: KEYS or GRADIENTS.
        owner: the rank to which it belongs.
        rank: the one that has it.
        wrong: whether it is not what it should be.
    """

    kind: str
    owner: int
    rank: int
    wrong: bool = False


def draw(
    queries: Sequence[str], idle: Sequence[bool], busy: bool, travellers: Sequence[Traveller], moves: str = ""
) -> list[Shape]:
    """The circle.

    Args:
        queries: the chunks that stay on each rank, in words.
        idle: whether each rank has nothing to compute.
        busy: whether the others compute.
        moves: the kind of travellers that have just moved on by one rank.
    """
    ranks = len(queries)
    track = tuple(_around(i / 48) for i in range(49))
    shapes: list[Shape] = [Curve(track, "faint", 2)]
    for rank in range(ranks):
        x, y = _around(rank / ranks)
        name = Box(
            x - WIDE / 2, y - HIGH, WIDE, HIGH, of_rank(rank), f"rank {rank}", str(rank), "ink" if busy else None
        )
        if idle[rank]:
            name = Box(x - WIDE / 2, y - HIGH, WIDE, HIGH, "faint", f"{rank} idle", ".")
        shapes += [name, Box(x - WIDE / 2, y, WIDE, HIGH, "paper", f"Q {queries[rank]}", " ", of_rank(rank))]
    if moves:
        shapes += [_arrow(one, ranks) for one in travellers if one.kind == moves]
    two = len({one.kind for one in travellers}) > 1
    for one in travellers:
        shapes.append(_chip(one, ranks, 0 if not two else -1 if one.kind == KEYS else 1))
    return shapes


def _chip(one: Traveller, ranks: int, below: int) -> Box:
    """What travels, inside the circle next to the rank that has it; of two kinds one is above the other."""
    few = ranks <= FEW
    x, y = _around(one.rank / ranks, *(INSIDE if few else CROWDED))
    text = f"{one.kind} {one.owner}" if few else f"{one.kind.replace('V', '')}{one.owner}"
    wide, high = (5.9, 1.2) if few else (3.2, 0.8)
    top = y - high / 2 + below * high / 2
    fill, mark = ("wrong", "!") if one.wrong else (of_rank(one.owner), str(one.owner))
    name = f"{one.kind} of rank {one.owner}"
    return Box(x - wide / 2, top, wide, high, fill, text, mark, "wrong" if one.wrong else "faint", id=name)


def _arrow(one: Traveller, ranks: int) -> Arrow:
    """An arrow along the circle, from the rank before to the rank that has it now."""
    before = (one.rank - 1) % ranks
    start, end = (_around((before + part) / ranks) for part in (0.36, 0.68))
    return Arrow(*start, *end, of_rank(one.owner), f"{before} → {one.rank}: {one.kind} {one.owner}")


def _around(turn: float, across: float = 1.0, down: float = 1.0) -> tuple[float, float]:
    """A place on the circle, clockwise from the top, or on a smaller one, whose size is given in radii."""
    return MIDDLE[0] + across * ACROSS * sin(2 * pi * turn), MIDDLE[1] - down * DOWN * cos(2 * pi * turn)
