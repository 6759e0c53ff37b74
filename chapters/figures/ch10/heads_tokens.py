"""Ulysses: an all-to-all turns some tokens of all heads into all tokens of some heads."""

from minidist.show.palette import MEANINGS, ink_on, of_rank


def owners(heads: int, tokens: int, ranks: int, by: str) -> list[list[int]]:
    """Return the rank that has each head (row) of each group of tokens (column), cut ``by`` "tokens" or "heads"."""
    return [[h * ranks // heads if by == "heads" else t * ranks // tokens for t in range(tokens)] for h in range(heads)]


def draw(heads: int, tokens: int, ranks: int):
    """Draw queries, keys and values before and after the all-to-all, and the way back; return a matplotlib Figure."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyArrowPatch, Rectangle

    figure = Figure(figsize=(11, 2.9), layout="constrained")
    axes = figure.subplots()
    gap = 6.5
    stages = (
        ("tokens", "queries, keys, values:\nsome tokens of all heads", "all-to-all"),
        ("heads", "attention:\nall tokens of some heads", "all-to-all"),
        ("tokens", "output:\nsome tokens of all heads", ""),
    )
    for place, (by, title, arrow) in enumerate(stages):
        left = place * (tokens + gap)
        for h, row in enumerate(owners(heads, tokens, ranks, by)):
            for t, rank in enumerate(row):
                colour = of_rank(rank)
                axes.add_patch(Rectangle((left + t, h), 1, 1, facecolor=colour, edgecolor="white", linewidth=1))
        for rank in range(ranks):
            first = rank / ranks
            x, y = (0.5, heads * first + 0.5) if by == "heads" else (tokens * first + 0.5, 0.5)
            axes.text(left + x, y, rank, ha="center", va="center", fontsize=10, color=ink_on(of_rank(rank)))
        axes.text(left + tokens / 2, -0.35, title, ha="center", va="bottom", fontsize=10)
        axes.text(left + tokens / 2, heads + 0.2, "tokens →", ha="center", va="top", fontsize=9, color="#606060")
        axes.text(left - 0.25, heads / 2, "heads", ha="right", va="center", rotation=90, fontsize=9, color="#606060")
        if arrow:
            start, end = left + tokens + 0.6, left + tokens + gap - 1.5
            axes.add_patch(
                FancyArrowPatch(
                    (start, heads / 2),
                    (end, heads / 2),
                    arrowstyle="-|>",
                    mutation_scale=16,
                    color=MEANINGS["communication"],
                    lw=3,
                )
            )
            axes.text((start + end) / 2, heads / 2 - 0.35, arrow, ha="center", va="bottom", fontsize=9)
    axes.set(xlim=(-1.5, 3 * tokens + 2 * gap + 0.5), ylim=(heads + 1.2, -2.3), aspect="equal")
    axes.axis("off")
    return figure
