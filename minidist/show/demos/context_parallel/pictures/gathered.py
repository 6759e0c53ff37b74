"""The right part of backward's picture: what has been added so far to the gradients of each rank's keys and values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minidist.show.demos.context_parallel.pictures.matrix import SIDE, TOP
from minidist.show.palette import of_rank
from minidist.show.player.scene import Box, Label, Shape

LEFT, RIGHT = 57.5, 71.3
ROOMY = 2.0  # lines for a rank: then there is one for a heading


@dataclass(frozen=True)
class Term:
    """What one rank adds: whether it has, and whether that is wrong."""

    rank: int
    added: bool
    wrong: bool


def draw(terms: Sequence[Sequence[Term]], errors: Mapping[int, float] | None = None) -> list[Shape]:
    """A row for each rank's keys and values, with a cell for each rank whose queries need them.

    Args:
        errors: rank -> by how much of its norm the finished dK is off, if the run has ended.
    """
    pitch, cell = SIDE / len(terms), (RIGHT - LEFT) / len(terms)
    shapes: list[Shape] = [Label(LEFT, 0.8, "terms of rank", "ink")] if pitch < ROOMY else []
    for owner, row in enumerate(terms):
        top = TOP + owner * pitch
        y, high = (top + 1, min(1.3, pitch - 1.2)) if pitch >= ROOMY else (top, pitch - 0.3)
        if pitch >= ROOMY:
            shapes.append(_heading(owner, top, errors))
        else:
            shapes.append(Label(LEFT - 0.6, y + high / 2, str(owner), of_rank(owner), "end"))
        for term in row:
            fill, mark = (None, " ") if not term.added else ("wrong", "!") if term.wrong else (of_rank(term.rank), "=")
            text = str(term.rank) + "!" * (term.wrong and cell > 2) if term.added and high >= 0.9 else ""
            shapes.append(Box(LEFT + term.rank * cell, y, cell - 0.2, high, fill, text, mark, "faint"))
    return shapes


def _heading(owner: int, top: float, errors: Mapping[int, float] | None) -> Label:
    if errors is None:
        return Label(LEFT, top + 0.25, f"dKV {owner} =", of_rank(owner))
    if not errors.get(owner):
        return Label(LEFT, top + 0.25, f"dKV {owner} ✓", "right")
    return Label(LEFT, top + 0.25, f"dK {owner}: {errors[owner]:.0%} off", "wrong")
