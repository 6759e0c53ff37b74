"""Figure of the vote: what replicas report about their arrays, and which of them disagree with the majority."""

from collections import Counter
from collections.abc import Mapping, Sequence

from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS, ink_on, on_paper

AGREED, ODD, SPLIT = "#A9CCE3", on_paper("wrong"), MEANINGS["lost"]


def colours_of(votes: Sequence[str]) -> list[str]:
    """Return a colour for each vote: with the majority, against it, or without a majority."""
    (most, count), *_ = Counter(votes).most_common()
    if count == len(votes):
        return [AGREED] * len(votes)
    if 2 * count <= len(votes):
        return [SPLIT] * len(votes)
    return [AGREED if vote == most else ODD for vote in votes]


def draw(panels: Mapping[str, Mapping[str, Sequence[str]]], voters: Mapping[str, Sequence[str]]):
    """Return a matplotlib Figure: a panel for each vote, a column for each voter, a row for each thing voted on.

    Args:
        panels: title -> row -> what each voter says, short texts.
        voters: title -> names of the columns.
    """
    from matplotlib.patches import Rectangle

    rows = max(len(panel) for panel in panels.values())
    ratios = [len(names) for names in voters.values()]
    figure, grid = subplots(11, 0.4 * rows + 1.1, 1, len(panels), width_ratios=ratios)
    for place, (axes, (title, panel)) in enumerate(zip(grid, panels.items(), strict=True)):
        for y, votes in enumerate(panel.values()):
            for x, (vote, colour) in enumerate(zip(votes, colours_of(votes), strict=True)):
                axes.add_patch(Rectangle((x + 0.04, y + 0.08), 0.92, 0.84, facecolor=colour))
                axes.text(x + 0.5, y + 0.5, vote, ha="center", va="center", fontsize=9, family="monospace",
                          fontweight="bold" if colour != AGREED else "normal", color=ink_on(colour))  # fmt: skip
        names = voters[title]
        axes.set_title(title, fontsize=9.5)
        axes.set_xticks([x + 0.5 for x in range(len(names))], names, fontsize=8.5)
        axes.set_yticks([y + 0.5 for y in range(len(panel))], list(panel) if not place else [""] * len(panel),
                        fontsize=8.5)  # fmt: skip
        axes.set(xlim=(0, len(names)), ylim=(len(panel), 0))
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    kinds = (("agreed", AGREED), ("outvoted", ODD), ("no majority", SPLIT))
    handles = [Rectangle((0, 0), 1, 1, color=colour, label=label) for label, colour in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return figure


def draw_columns(
    votes: Mapping[str, Sequence[Sequence[str]]], rows: Sequence[str], names: Mapping[str, Sequence[str]] = {}
):
    """Return a matplotlib Figure of votes that are listed voter by voter.

    Args:
        votes: title -> for each voter what it says, row by row.
        rows: names of the rows.
        names: title -> names of the voters, where they are not rank 0, rank 1, ...
    """
    panels = {title: dict(zip(rows, zip(*columns, strict=True), strict=True)) for title, columns in votes.items()}
    ranks = {title: [f"rank {rank}" for rank in range(len(columns))] for title, columns in votes.items()}
    return draw(panels, ranks | names)
