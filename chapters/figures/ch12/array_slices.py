"""One array laid flat: who wrote which part of it, and who reads it from whom."""

from collections.abc import Sequence

from minidist.parallel.tools.regions import Run, overlaps
from minidist.show.palette import ink_on, of_rank

GREY = "#606060"


def reads(wrote: Sequence[tuple[Run, ...]], wants: Sequence[tuple[Run, ...]]) -> list[tuple[int, int, int]]:
    """Return (reader, writer, elements) for each pair of ranks that share elements."""
    found = []
    for reader, mine in enumerate(wants):
        for writer, theirs in enumerate(wrote):
            if elements := sum(length for _, _, length in overlaps(mine, theirs)):
                found.append((reader, writer, elements))
    return found


def draw(size: int, names: Sequence[str], wrote, wants, titles: tuple[str, str]):
    """Return a matplotlib Figure: the writers' parts above, the readers' below, and a band for each run that goes over.

    Args:
        size: of the array.
        names: of equal pieces of it, such as its heads.
        wrote, wants: for each rank its runs.
        titles: of the two layouts.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Polygon, Rectangle

    figure = Figure(figsize=(11, 3.0), layout="constrained")
    axes = figure.subplots()
    for y, ranks, verb in ((2.0, wrote, "wrote"), (0.0, wants, "reads")):
        for rank, runs in enumerate(ranks):
            colour = of_rank(rank)
            for start, stop in runs:
                axes.add_patch(Rectangle((start, y), stop - start, 0.6, facecolor=colour, edgecolor="white", lw=1.5))
                text = f"rank {rank} {verb}\n{start:,} to {stop:,}"
                axes.text((start + stop) / 2, y + 0.3, text, ha="center", va="center", fontsize=8.5,
                          color=ink_on(colour))  # fmt: skip
    for reader, mine in enumerate(wants):
        for theirs in wrote:
            for here, _, length in overlaps(mine, theirs):
                start = _place(mine, here)
                corners = [(start, 2.0), (start + length, 2.0), (start + length, 0.6), (start, 0.6)]
                axes.add_patch(Polygon(corners, facecolor=of_rank(reader), alpha=0.25, edgecolor="white", lw=2))
                axes.text(start + length / 2, 1.3, f"{length:,}", ha="center", va="center", fontsize=9)
    each = size / len(names)
    for number, name in enumerate(names):
        axes.text((number + 0.5) * each, 2.75, name, ha="center", va="bottom", fontsize=9, color=GREY)
        axes.plot([number * each] * 2, [2.6, 2.85], color=GREY, lw=0.8)
    axes.plot([size] * 2, [2.6, 2.85], color=GREY, lw=0.8)
    for y, title in zip((2.3, 0.3), titles, strict=True):
        axes.text(-0.01 * size, y, title, ha="right", va="center", fontsize=10)
    axes.text(-0.01 * size, 1.3, "elements\nto copy", ha="right", va="center", fontsize=9, color=GREY)
    axes.set(xlim=(-0.13 * size, size * 1.005), ylim=(-0.1, 3.1))
    axes.axis("off")
    return figure


def _place(runs: tuple[Run, ...], element: int) -> int:
    """Return where an element of a part is in the full array."""
    for start, stop in runs:
        if element < stop - start:
            return start + element
        element -= stop - start
    raise ValueError("the part has fewer elements")
