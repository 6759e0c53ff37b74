"""The middle part of a picture: the scores of all queries (down) and keys (across), in tiles."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import floor

from minidist.show.palette import of_rank
from minidist.show.player.scene import Box, Label, Shape

LEFT, TOP, SIDE = 32.4, 1.6, 10.4  # edges, and its height in lines; it is a square


@dataclass(frozen=True)
class Tile:
    """A tile that has been computed: by which rank, in which hop, and with whose keys if not with the right ones."""

    rank: int
    hop: int
    stale: int | None = None


def draw(chunks: int, done: Mapping[tuple[int, int], Tile], hop: int | None = None) -> list[Shape]:
    """The square, with ``chunks`` chunks along each side.

    Args:
        done: (chunk of queries, chunk of keys) -> its tile.
        hop: the hop of this frame, whose tiles are outlined.
    """
    high = SIDE / chunks
    wide = 2 * high
    shapes: list[Shape] = []
    for i in range(chunks):
        long = wide >= 3
        shapes.append(Label(LEFT - 0.6, TOP + (i + 0.5) * high, f"Q {i}" if long else str(i), "ink", "end"))
        if wide > 2 or i % 2 == 0:  # of narrow columns every second has a number
            shapes.append(Label(LEFT + (i + 0.5) * wide, 0.8, f"K {i}" if long else str(i), "ink", "middle"))
        for j in range(chunks):
            shapes += _cell(LEFT + j * wide, TOP + i * high, wide, high, done.get((i, j)), hop, masked=j > i)
    return shapes


def _cell(
    x: float, y: float, wide: float, high: float, tile: Tile | None, hop: int | None, masked: bool
) -> list[Shape]:
    w, h = wide - 0.3, high - 0.15
    if masked:
        hatch, lines = "╱" * max(1, floor(w)), max(1, floor(high))
        return [Label(x + wide / 2, y + high * (line + 0.5) / lines, hatch, "faint", "middle") for line in range(lines)]
    if tile is None:
        return [Box(x, y, w, h, None, outline="faint", mark=" ")]
    outline = "ink" if tile.hop == hop else "faint"
    if tile.stale is not None:
        text = f"K {tile.stale}!" if w >= 4 else "!"
        return [Box(x, y, w, h, "wrong", text, "!", outline)]
    return [Box(x, y, w, h, of_rank(tile.rank), str(tile.hop) if high >= 1 and w >= 1 else "", str(tile.rank), outline)]
