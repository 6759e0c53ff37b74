"""The picture of a cut MLP: a strip for each rank, and in it a place for every matrix from x to y.

Grey is on every rank. A rank's colour is its own part: columns of A, rows of B, its tokens. Hollow is a partial sum, of
full shape but not finished. f and g are bars across the ranks, orange while they send.
Red is wrong: filled where a sum is missing, outlined what follows from it.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from minidist.show.demos.tensor_parallel.numbers import TOKENS, UNITS, WIDTH
from minidist.show.palette import COLLECTIVES, of_rank
from minidist.show.player.scene import Box, Label, Shape

CELL = 2.6  # characters
ROOM = 3  # characters of a number
SENDS = COLLECTIVES["all-reduce"]
PLACES = ("x", "full", "a", "z", "b", "partial", "y")
COLUMNS = {"x": WIDTH, "full": WIDTH, "a": UNITS, "z": UNITS, "b": WIDTH, "partial": WIDTH, "y": WIDTH}
ROWS = {"x": TOKENS, "full": TOKENS, "a": WIDTH, "z": TOKENS, "b": UNITS, "partial": TOKENS, "y": TOKENS}
GAPS = (3.6, 1.7, 1.7, 1.7, 1.7, 3.6)  # after each place
SIGNS = {"full": "·", "a": "→", "z": "·", "b": "="}  # after a place
NAMES_WIDTH = 7  # of "rank 0"
TOP = 1.5  # line of the first strip


def left_of(place: str) -> float:
    """The left end of a place."""
    before = PLACES.index(place)
    return NAMES_WIDTH + sum(CELL * COLUMNS[name] for name in PLACES[:before]) + sum(GAPS[:before])


def text_of(number: float) -> str:
    """A number for a cell; one too long for it is shown as "…"."""
    text = f"{number + 0:.0f}".replace("-", "−") if number else "0"
    return text if len(text) <= ROOM else "…"


def cells(
    array: np.ndarray,
    left: float,
    top: float,
    id_of: Callable[[int, int], str],
    fill_of: Callable[[int, int], str],
    outline: str | None = "paper",
    tall: float = 1,
) -> list[Box]:
    """A matrix as boxes, one for each number; a row is ``tall`` lines tall."""
    return [
        Box(left + CELL * column, top + tall * row, CELL, tall, fill_of(row, column), text_of(number), " ", outline,
            id_of(row, column))
        for row, numbers in enumerate(array) for column, number in enumerate(numbers)
    ]  # fmt: skip


@dataclass
class Board:
    """What is visible, by place and rank; a place that is set again shows the new matrix alone.

    Args:
        ranks: how many strips.
        gains: whether each strip has a line for the gain.
    """

    ranks: int
    gains: bool = False
    shown: dict[tuple[str, int], list[Shape]] = field(default_factory=dict)
    headings: dict[str, str] = field(default_factory=dict)
    sending: str = ""  # "f" or "g"
    skipped: str = ""  # the sum that a bug skips, "g" or "gain", from there on
    signs: bool = True  # whether the places read as a formula: in forward they do

    @property
    def pitch(self) -> float:
        return TOKENS + (2 if self.gains else 1)

    @property
    def height(self) -> float:
        return TOP + self.ranks * self.pitch + 1.5

    def top_of(self, place: str, rank: int) -> float:
        return TOP + rank * self.pitch + (TOKENS - ROWS[place]) / 2

    def heading(self, **of_places: str) -> None:
        self.headings |= of_places

    def clear(self, *places: str) -> None:
        self.shown = {key: shapes for key, shapes in self.shown.items() if key[0] not in places}
        for place in places:
            self.headings.pop(place, None)

    def shapes(self, line: str, wrong: bool = False) -> tuple[Shape, ...]:
        """Everything, and below it one line of text."""
        found: list[Shape] = [
            Label(0, TOP + rank * self.pitch + TOKENS / 2, f"rank {rank}", of_rank(rank)) for rank in range(self.ranks)
        ]
        for place, text in self.headings.items():
            found.append(Label(left_of(place) + CELL * COLUMNS[place] / 2, 0.7, text, "ink", "middle"))
        found += self._bars()
        for place, sign in SIGNS.items() if self.signs else ():
            x = left_of(place) + CELL * COLUMNS[place] + GAPS[PLACES.index(place)] / 2
            found += [
                Label(x, TOP + rank * self.pitch + TOKENS / 2, sign, "ink", "middle") for rank in range(self.ranks)
            ]
        for boxes in self.shown.values():
            found += boxes
        found += self._no_sum()
        found.append(Label(36, self.height - 0.7, line, "wrong" if wrong else "ink", "middle"))
        return tuple(found)

    def _bars(self) -> list[Shape]:
        """f and g, through which everything between the ranks goes."""
        bottom = TOP + (self.ranks - 1) * self.pitch + TOKENS
        bars: list[Shape] = []
        for name, place in (("f", "x"), ("g", "partial")):
            x = left_of(place) + CELL * COLUMNS[place] + (GAPS[0] - 1.6) / 2
            fill = "wrong" if name == self.skipped else SENDS if name == self.sending else "paper"
            outline = "wrong" if name == self.skipped else SENDS
            bars.append(Box(x, TOP, 1.6, bottom - TOP, fill, name, "|", outline, name))
        return bars

    def _no_sum(self) -> list[Shape]:
        """Where a sum is missing: between the ranks."""
        if not self.skipped:
            return []
        left, width, text = left_of("x"), CELL * WIDTH, "no sum"
        if self.skipped == "g":  # over the bar's name
            left, width, text = left_of("y") - GAPS[-1] / 2 - 4.8, 9.6, "g: no sum"
        gaps = [TOP + rank * self.pitch + TOKENS + 0.05 for rank in range(self.ranks - 1)]
        below = 1.25 if self.skipped == "gain" else 0  # the line of the gain
        return [Box(left, y + below, width, 0.9, "wrong", text, "!", id="the sum that is missing") for y in gaps]
