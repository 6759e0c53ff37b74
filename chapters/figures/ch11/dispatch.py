"""Expert parallelism: tokens leave their ranks for those of their experts, and come back."""

from typing import NamedTuple

import numpy as np

from minidist.show.palette import ink_on, of_rank

GREY = "#9A9A9A"


class Row(NamedTuple):
    """A copy of a token, on its way to one expert."""

    source: int  # the rank that has the token
    token: int  # its number there
    expert: int
    rank: int  # the rank that has the expert
    place: int  # its number there


def rows_of(chosen: np.ndarray, experts: int) -> list[Row]:
    """Return where every copy of every token goes.

    Args:
        chosen: integers (ranks, N, k), the experts of each rank's tokens.
        experts: E, shared out evenly.
    """
    ranks, tokens, k = chosen.shape
    each = experts // ranks
    copies = sorted((int(chosen[r, n, j]), r, n) for r in range(ranks) for n in range(tokens) for j in range(k))
    found, used = [], [0] * ranks
    for expert, source, token in copies:
        rank = expert // each
        found.append(Row(source, token, expert, rank, used[rank]))
        used[rank] += 1
    return found


def draw(chosen: np.ndarray, experts: int):
    """Return a matplotlib Figure: tokens above, the rows of the experts in the middle, the tokens again below.

    Args:
        chosen, experts: as for ``rows_of``.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    ranks, tokens, _ = chosen.shape
    each, rows = experts // ranks, rows_of(chosen, experts)
    counts = np.bincount([row.expert for row in rows], minlength=experts)
    widths = [
        sum(max(1, count) for count in counts[each * r : each * (r + 1)]) + 0.5 * (each - 1) for r in range(ranks)
    ]
    width, gap = max(*widths, 1.4 * tokens), 1.6
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    axes = figure.subplots()

    def square(x, y, rank, text):
        axes.add_patch(Rectangle((x, y), 0.9, 0.9, facecolor=of_rank(rank), edgecolor="white", zorder=3))
        colour = ink_on(of_rank(rank))
        axes.text(x + 0.45, y + 0.45, text, ha="center", va="center", fontsize=10, color=colour, zorder=4)

    def home(rank, token):
        return rank * (width + gap) + (width - 1.4 * tokens) / 2 + 1.4 * token

    place, names = {}, [chr(ord("a") + i) for i in range(ranks * tokens)]
    for expert in range(experts):
        rank, first = expert // each, each * (expert // each)
        left = rank * (width + gap) + (width - widths[rank]) / 2
        left += sum(max(1, count) + 0.5 for count in counts[first:expert])
        mine = [row for row in rows if row.expert == expert]
        for number, row in enumerate(mine):
            place[row] = left + number
            square(left + number, 0, row.source, names[row.source * tokens + row.token])
        if not mine:
            axes.add_patch(Rectangle((left, 0), 0.9, 0.9, fill=False, edgecolor=GREY, linestyle=":"))
        end = left + max(1, len(mine)) - 0.1
        axes.plot([left, end], [-0.22, -0.22], color="#404040", lw=1.5)
        axes.text((left + end) / 2, -0.4, f"expert {expert}", ha="center", va="top", fontsize=8.5)
    for rank in range(ranks):
        left = rank * (width + gap)
        for y, height in ((4.6, 1.6), (-1.3, 2.5), (-6.0, 1.6)):
            axes.add_patch(Rectangle((left - 0.4, y), width + 0.7, height, fill=False, edgecolor="#C8C8C8", lw=1))
        axes.text(left + width / 2, 6.4, f"rank {rank}", ha="center", va="bottom", fontsize=10, color=of_rank(rank))
        for token in range(tokens):
            for y in (4.95, -5.65):
                square(home(rank, token), y, rank, names[rank * tokens + token])
    for row, x in place.items():
        far = row.rank != row.source
        style = {"color": of_rank(row.source), "lw": 1.6 if far else 1.0, "ls": "-" if far else ":", "alpha": 0.85}
        start = home(row.source, row.token) + 0.45
        axes.plot([start, x + 0.45], [4.95, 0.9], **style, zorder=1)
        axes.plot([x + 0.45, start], [-1.3, -4.75], **style, zorder=1)
    for y, text in ((5.4, "tokens"), (2.9, "dispatch:\nall-to-all"), (0.45, "rows of\nexperts")):
        axes.text(-1.0, y, text, ha="right", va="center", fontsize=9.5)
    for y, text in ((-3.0, "combine:\nall-to-all"), (-5.2, "weighted\nsums")):
        axes.text(-1.0, y, text, ha="right", va="center", fontsize=9.5)
    axes.set(xlim=(-4.2, ranks * (width + gap) - gap + 0.6), ylim=(-6.2, 7.3))
    axes.axis("off")
    return figure
