"""Attention and two memories: on the left the T x T scores in tiles, on the right the fast memory and what was moved.

Rows of the grid are tiles of queries, columns are tiles of keys and values, as in the paper's first figure. What is in
the fast memory at the moment has its colour; what lies in the slow memory, and is not used, is grey.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from minidist.show.palette import MEANINGS
from minidist.show.player.scene import Box, Label, Shape

QUERIES, KEYS, VALUES, SCORES = (MEANINGS[what] for what in ("queries", "keys", "values", "activations"))
OUTPUT, SUMS = MEANINGS["result"], MEANINGS["softmax sums"]
DONE = MEANINGS["merged activations"]  # of a tile whose scores are gone
WEIGHTS = MEANINGS["softmax"]  # the softmax of scores
MARKS = {SCORES: "s", DONE: ".", WEIGHTS: "p", OUTPUT: "o", "wrong": "!"}
READ, WRITTEN = MEANINGS["read"], MEANINGS["written"]
CELL = 5.8, 1.8  # width and height of a tile in the grid
LEFT, TOP = 5, 1.1  # of the grid; the queries are to its left, keys and values above it
PANEL, END = 46, 71.5  # edges of the right half
HATCH = "╱╱╱╱╱"


@dataclass
class Board:
    """The scores in tiles, with the queries, the keys and values, and the outputs.

    Args:
        count: tiles of queries, and of keys.
        skipped: (queries, keys) of the tiles that lie in the future.
        fills: (queries, keys) -> the colour of a tile; others are empty.
        outputs: tile of queries -> the colour of its output, once it is written.
        queries, keys, values: the tiles in the fast memory.
        current: (queries, keys) of the tiles that are worked on.
    """

    count: int
    skipped: Collection[tuple[int, int]] = ()
    fills: dict[tuple[int, int], str] = field(default_factory=dict)
    outputs: dict[int, str] = field(default_factory=dict)
    queries: Collection[int] = ()
    keys: Collection[int] = ()
    values: Collection[int] = ()
    current: Collection[tuple[int, int]] = ()

    @property
    def height(self) -> float:
        return max(10, TOP + CELL[1] * self.count)

    def draw(self) -> list[Shape]:
        w, h = CELL
        shapes: list[Shape] = []
        for j in range(self.count):
            shapes.append(_lit(LEFT + j * w, 0, 2.7, 0.9, f"K{j}", KEYS, j in self.keys))
            shapes.append(_lit(LEFT + j * w + 2.7, 0, 2.7, 0.9, f"V{j}", VALUES, j in self.values))
        for i in range(self.count):
            shapes.append(_lit(0, TOP + i * h, LEFT - 0.6, h - 0.2, f"Q{i}", QUERIES, i in self.queries))
            for j in range(self.count):
                shapes += self._cell(i, j)
            fill = self.outputs.get(i, "faint")
            shapes.append(
                Box(LEFT + self.count * w + 0.4, TOP + i * h, 3.2, h - 0.2, fill, f"O{i}", MARKS.get(fill, " "))
            )
        return shapes

    def _cell(self, i: int, j: int) -> list[Shape]:
        x, y = LEFT + j * CELL[0], TOP + i * CELL[1]
        if (i, j) in self.skipped:
            return [Label(x + 0.3, y + line, HATCH, "faint") for line in (0.4, 1.2)]
        fill, outline = self.fills.get((i, j)), "ink" if (i, j) in self.current else "faint"
        return [Box(x, y, CELL[0] - 0.4, CELL[1] - 0.2, fill, "", MARKS.get(fill, " "), outline)]


def _lit(x: float, y: float, w: float, h: float, text: str, colour: str, lit: bool) -> Box:
    """Grey, unless it is in the fast memory."""
    return Box(x, y, w, h, colour if lit else "faint", text, text[0].lower() if lit else " ")


def fast_memory(held: Sequence[tuple[str, str, int]], room: int) -> list[Shape]:
    """What is in the fast memory: (letter, colour, elements) of each array, as shares of its ``room``."""
    used = sum(size for *_, size in held)
    shapes: list[Shape] = [
        Label(PANEL, 0.5, "fast memory"),
        Label(END, 0.5, f"{used:,} of {room:,}", "ink", "end"),
        Box(PANEL, 1, END - PANEL, 2.5, None, outline="faint"),
    ]
    x = float(PANEL)
    for letter, colour, size in held:
        width = (END - PANEL) * size / room
        shapes.append(Box(x, 1, width, 2.5, colour, letter if width >= 1 else "", letter.lower(), id=letter))
        x += width
    return shapes


def traffic(rows: Sequence[tuple[str, int, int]], most: int) -> list[Shape]:
    """Elements moved between the memories: (name, reads, writes) of each form, on a scale that ends at ``most``."""
    shapes: list[Shape] = [Label(PANEL, 4.7, "read and written", "faint")]
    for number, (name, reads, writes) in enumerate(rows):
        y, x = 5.3 + 3.5 * number, float(PANEL)
        shapes.append(Label(PANEL, y + 0.5, name))
        shapes.append(Label(END, y + 0.5, f"{reads + writes:,}", "ink", "end"))
        for count, colour, mark in ((reads, READ, "r"), (writes, WRITTEN, "w")):
            width, text = (END - PANEL) * count / most, f"{count:,}"
            if count:
                shapes.append(Box(x, y + 1, width, 1.6, colour, text if len(text) < width else "", mark))
            x += width
    return shapes
