"""Figure of which heads of queries, and which of keys and values, each tensor-parallel rank holds."""

from collections.abc import Sequence

from minidist.parallel.tensor import groups_of, heads_of
from minidist.show.palette import ink_on, of_rank

ROOM = 1.0  # between two ranks


def holdings(heads: int, groups: int, ranks: int) -> list[tuple[range, range]]:
    """Return each rank's heads of queries, and its heads of keys and values."""
    return [(heads_of(rank, ranks, heads), groups_of(rank, ranks, groups)) for rank in range(ranks)]


def draw(heads: int, groups: Sequence[int], ranks: int):
    """Return a matplotlib Figure: a row for each number of key heads; a head that several ranks hold is hatched."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    figure = Figure(figsize=(11, 0.4 + 1.15 * len(groups)), layout="constrained")
    axes = figure.subplots()
    each, label = heads // ranks, {"ha": "center", "va": "center", "fontsize": 9}
    for row, count in enumerate(groups):
        top = 3.1 * row
        for rank, (queries, keys) in enumerate(holdings(heads, count, ranks)):
            colour, left = of_rank(rank), rank * (each + ROOM)
            several = ranks > count
            for place, head in enumerate(queries):
                axes.add_patch(Rectangle((left + place + 0.06, top), 0.88, 0.8, color=colour))
                axes.text(left + place + 0.5, top + 0.4, f"q{head}", color=ink_on(colour), **label)
                middle = left + (keys.index(head * count // heads) + 0.5) * each / len(keys)
                axes.plot([left + place + 0.5, middle], [top + 0.8, top + 1.3], color="#909090", linewidth=1)
            for place, key in enumerate(keys):
                middle = left + (place + 0.5) * each / len(keys)
                corner = middle - 0.44, top + 1.3
                if several:
                    box = Rectangle(corner, 0.88, 0.8, facecolor="white", edgecolor=colour, linewidth=1.5, hatch="////")
                else:
                    box = Rectangle(corner, 0.88, 0.8, color=colour)
                axes.add_patch(box)
                paper = {"facecolor": "white", "edgecolor": "none", "pad": 2} if several else None
                ink = "black" if several else ink_on(colour)
                axes.text(middle, top + 1.7, f"kv{key}", color=ink, bbox=paper, **label)
            if not row:
                axes.text(left + each / 2, top - 0.2, f"rank {rank}", ha="center", va="bottom", fontsize=9)
        times = f"each on {ranks // count} ranks" if several else "each on one rank"
        said = f"G = {count}: {times}"
        axes.text(-0.4, top + 1.05, said, ha="right", va="center", fontsize=10)
    axes.set(xlim=(-4.3, ranks * (each + ROOM)), ylim=(3.1 * len(groups) - 0.6, -1.1))
    axes.axis("off")
    return figure
