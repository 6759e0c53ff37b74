"""The columns of a fused weight for queries, keys and values, and two ways to distribute them over ranks."""

import numpy as np

from minidist.show.palette import ink_on, of_rank

LETTERS = "qkv"


def columns(heads: int) -> list[str]:
    """Return the groups of columns of a fused weight (C, 3C), one for each head: q0 q1 ... k0 k1 ... v0 v1 ..."""
    return [f"{letter}{head}" for letter in LETTERS for head in range(heads)]


def contiguous(heads: int, ranks: int) -> list[list[str]]:
    """Split the columns into equal contiguous parts; return each rank's."""
    fused = columns(heads)
    each = len(fused) // ranks
    return [fused[rank * each : (rank + 1) * each] for rank in range(ranks)]


def by_heads(heads: int, ranks: int) -> list[list[str]]:
    """Distribute complete heads; return each rank's queries, keys and values."""
    each = heads // ranks
    return [[f"{letter}{rank * each + i}" for letter in LETTERS for i in range(each)] for rank in range(ranks)]


def read_contiguous(weight: np.ndarray, ranks: int) -> np.ndarray:
    """Return a weight (H, ..., 3D) as ranks with equal contiguous parts of the fused one would read it: same shape."""
    heads = [dict(zip(LETTERS, np.split(head, 3, axis=-1), strict=True)) for head in weight]
    read = []
    for part in contiguous(len(weight), ranks):
        groups = [heads[int(name[1:])][name[0]] for name in part]
        each = len(groups) // 3
        read += [np.concatenate(groups[i::each], axis=-1) for i in range(each)]
    return np.stack(read)


def complete(part: list[str]) -> list[int]:
    """Return the heads whose queries, keys and values are all present, so that their attention can be computed."""
    found = {int(name[1:]) for name in part}
    return [head for head in sorted(found) if all(f"{letter}{head}" in part for letter in LETTERS)]


def draw(heads: int, ranks: int):
    """Return a matplotlib Figure: the fused weight, each rank's part below it, heads in the colour of their rank."""
    from matplotlib.figure import Figure

    rows = [("the fused weight", columns(heads))]
    for title, dealt in (("contiguous", contiguous(heads, ranks)), ("by heads", by_heads(heads, ranks))):
        rows += [(f"{title}: rank {rank}", part) for rank, part in enumerate(dealt)]
    figure = Figure(figsize=(11, 0.5 + 0.5 * len(rows)), layout="constrained")
    axes = figure.subplots()
    each, place = heads // ranks, {name: i for i, name in enumerate(columns(heads))}
    for row, (title, part) in enumerate(rows):
        y = row + 0.45 * (row > 0) + 0.45 * (row > ranks)
        for i, name in enumerate(part):
            head = int(name[1:])
            x = place[name] if row <= ranks else i
            colour = of_rank(head // each)
            axes.barh(y, 0.96, 0.8, x + 0.02, color=colour, align="center", alpha=1 - 0.45 * (head % each) / each)
            axes.text(x + 0.5, y, name, ha="center", va="center", color=ink_on(colour), fontsize=10)
        axes.text(-0.15, y, title, ha="right", va="center", fontsize=10)
        if row:
            heads_here = complete(part)
            said = f"heads {', '.join(map(str, heads_here))}" if heads_here else "no complete head"
            axes.text(len(place) + 0.2, y, said, va="center", fontsize=10)
    axes.set(xlim=(-2.6, len(place) + 2.6), ylim=(len(rows) + 0.4, -0.6))
    axes.axis("off")
    return figure
