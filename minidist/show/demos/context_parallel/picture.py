"""One hop of attention whose keys travel: the tile pairs, the ranks with what is there, and the time of all ranks.

A colour is a rank. In the grid it is the rank that computes a tile pair; among the ranks it is the owner of a chunk.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import floor

from minidist.show.demos.context_parallel.run import BACKWARD, Pass
from minidist.show.palette import of_rank
from minidist.show.player.scene import Arrow, Box, Label, Shape

LEFT, LINES = 3, 8  # of the grid: where it begins, and the most lines that it takes
RANKS, QUERIES, KEYS, GRADIENTS, END = 36, 43, 50, 59, 71.5  # columns of the table of ranks
CELL = 5  # width of a box in it
LANES, LANE = (7, 43), 28.5  # left edges of the two panels of time, and their width


def height(ranks: int) -> float:
    return _lanes_top(ranks) + 1 + ranks


def _pitch(ranks: int) -> int:
    """Lines from one rank to the next in the table."""
    return 2 if ranks <= 4 else 1


def _lanes_top(ranks: int) -> float:
    return 2 + max(LINES, ranks * _pitch(ranks))


@dataclass(frozen=True)
class Here:
    """What a rank has in one hop.

    Args:
        owner: the rank whose keys and values are here, and in backward the gradients of these.
        used: the rank whose keys and values it computes with.
        pairs: how many tile pairs it computes, in words.
        wrong: headings of the columns that are wrong.
    """

    owner: int
    used: int
    pairs: str
    wrong: Collection[str] = ()


def grid(
    chunks: int, done: Mapping[tuple[int, int], int], now: Collection[tuple[int, int]], wrong: Collection = ()
) -> list[Shape]:
    """The pairs of chunks: rows are queries, columns are keys.

    Args:
        done: pair -> the rank that has computed it.
        now: pairs of this hop.
        wrong: pairs computed with wrong keys.
    """
    h = max(0.5, floor(2 * LINES / chunks) / 2)
    w = 4 * h
    shapes: list[Shape] = [Label(0, 0.5, "chunks of queries (down) and keys (across)", "faint")]
    for i in range(chunks):
        if h >= 1:
            shapes.append(Label(0, 1 + (i + 0.5) * h, str(i), "faint"))
        for j in range(chunks):
            x, y = LEFT + j * w, 1 + i * h
            if j > i:
                hatch = "╱" * int(w / 2)  # too much for cells of half a line
                shapes += [Label(x + w / 2, y + line + 0.5, hatch, "faint", "middle") for line in range(int(h))]
                continue
            fill = None if (i, j) not in done else "wrong" if (i, j) in wrong else of_rank(done[i, j])
            mark = " " if fill is None else "!" if fill == "wrong" else str(done[i, j])
            outline = "ink" if (i, j) in now else "faint"
            shapes.append(Box(x, y, w - 0.1 * w, h - 0.1 * h, fill, "", mark, outline))
    return shapes


def table(ranks: Sequence[Here], chunks_of: Sequence[Sequence[int]], moving: Collection[str], way: str) -> list[Shape]:
    """The ranks, with the chunks that stay and those that travel.

    Args:
        chunks_of: each rank's chunks.
        moving: which of "K, V" and "dK, dV" are on their way to the next rank.
        way: FORWARD or BACKWARD.
    """
    heads = [(QUERIES, "Q"), (KEYS, "K, V")]
    if way == BACKWARD:
        heads = [(QUERIES, "Q, dQ"), (KEYS, "K, V"), (GRADIENTS, "dK, dV")]
    shapes: list[Shape] = [Label(x + CELL / 2, 0.5, text, "faint", "middle") for x, text in heads]
    end = END if way == BACKWARD else GRADIENTS + CELL
    shapes.append(Label(end, 0.5, "pairs", "faint", "end"))
    for rank, here in enumerate(ranks):
        y = 1 + rank * _pitch(len(ranks))
        shapes.append(Label(RANKS, y + 0.5, f"rank {rank}", of_rank(rank)))
        for (x, text), owner in zip(heads, (rank, here.used, here.owner), strict=False):
            wrong = text in here.wrong
            fill, mark = ("wrong", "!") if wrong else (of_rank(owner), " ")
            name = f"{text} of rank {owner}" if x != QUERIES else ""
            shapes.append(Box(x, y, CELL, 0.9, fill, " ".join(map(str, chunks_of[owner])), mark, id=name))
            if text in moving:
                shapes.append(_arrow(rank, len(ranks), x, f"{text} of rank {here.owner}"))
        shapes.append(Label(end, y + 0.5, here.pairs, "ink", "end"))
    return shapes


def _arrow(rank: int, ranks: int, column: float, what: str) -> Arrow:
    """To the next rank, to the right of a column."""
    following, pitch = (rank + 1) % ranks, _pitch(ranks)
    x, label = column + CELL + 0.8, f"{rank} → {following}: {what}"
    y, to_y = 1.5 + rank * pitch, 1.5 + following * pitch
    if following:
        return Arrow(x, y + 0.2, x, to_y - 0.2, "ink", label)
    return Arrow(x, y, x, to_y, "ink", label, 2.0)  # back to the first: past all others


@dataclass(frozen=True)
class Panel:
    """The time of one run: its title, its pass, and the (hop, rank) of visits with wrong results."""

    title: str
    run: Pass
    wrong: Collection[tuple[int, int]] = ()


def lanes(panels: Sequence[Panel], now: float) -> list[Shape]:
    """What all ranks have done by slot ``now``, for two runs side by side on one scale. Grey is idle."""
    ranks = panels[0].run.ranks
    scale = LANE / max(panel.run.slots() // ranks for panel in panels)
    shapes: list[Shape] = []
    for left, panel in zip(LANES, panels, strict=True):
        top, end = _lanes_top(ranks), panel.run.slots() // ranks
        shapes.append(Label(left, top + 0.5, panel.title))
        for rank in range(ranks):
            y = top + 1 + rank
            if left == LANES[0]:
                shapes.append(Label(0, y + 0.5, f"rank {rank}", of_rank(rank)))
            if now:
                shapes.append(Box(left, y, scale * min(now, end), 0.9, "faint", mark="."))
        for hop, (times, visits) in enumerate(zip(panel.run.times(), panel.run.visits, strict=True)):
            for rank, ((start, stop), visit) in enumerate(zip(times, visits, strict=True)):
                if start < min(now, stop):
                    wrong = (hop, rank) in panel.wrong
                    # No gap between two: a terminal would round it to a column of idle time.
                    width = scale * (min(now, stop) - start)
                    text = f"K{visit.owner}" if width > 2 else ""
                    fill, mark = ("wrong", "!") if wrong else (of_rank(rank), "=")
                    shapes.append(Box(left + scale * start, top + 1 + rank, width, 0.9, fill, text, mark, "faint"))
    return shapes
