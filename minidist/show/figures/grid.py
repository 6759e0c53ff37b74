"""The matrix of settings: which pairs were run together, whether their bits agreed, and what each run cost."""

from collections.abc import Sequence

import numpy as np

from minidist.show.palette import SERIES, on_paper
from minidist.verify.matrix import DIFFERENT, IMPOSSIBLE, SAME, Outcome, triangle

BLUE, RED, GREEN, _, _, ORANGE = SERIES[:6]
COLOURS = {SAME: on_paper("result"), DIFFERENT: on_paper("wrong"), IMPOSSIBLE: "#eeeeee"}
SIGNS = {SAME: "+", DIFFERENT: "X", IMPOSSIBLE: "."}


def as_text(outcomes: Sequence[Outcome]) -> str:
    """Return the matrix as text: a row and a column for each value, + where bits agreed, X where they did not."""
    values, rows = triangle(outcomes)
    names = [f"{key}={value}" for key, value in values]
    width = max(map(len, names))
    lines = []
    for name, row in zip(names, rows, strict=True):
        lines.append(f"{name:>{width}}  " + " ".join(SIGNS[cell] for cell in row))
    return "\n".join(lines[1:])


def draw(outcomes: Sequence[Outcome], title: str = ""):
    """Return a matplotlib Figure: the matrix of pairs, and the cost of each run, sorted by the number of ranks."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    values, rows = triangle(outcomes)
    names = [f"{key}={value}" for key, value in values]
    count = len(values)
    side = max(5.5, 0.15 * count)  # inches: a line of small type for each value
    figure = Figure(figsize=(side + 6, side + 2.3), layout="constrained")
    figure.suptitle(title)
    matrix, *columns = figure.subplots(1, 4, width_ratios=(side, 2, 2, 2))

    cells = np.full((count, count), np.nan)
    for y, row in enumerate(rows):
        cells[y, :y] = [list(COLOURS).index(cell) for cell in row]
    colours = ListedColormap(list(COLOURS.values()))
    matrix.pcolormesh(cells, cmap=colours, vmin=0, vmax=len(COLOURS) - 1, edgecolors="white", linewidth=1)
    for i in range(1, count):
        if values[i][0] != values[i - 1][0]:  # another setting begins
            matrix.plot([0, i], [i, i], color="grey", linewidth=0.8)
            matrix.plot([i, i], [i, count], color="grey", linewidth=0.8)
    matrix.set(xlim=(0, count), ylim=(count, 0), aspect="equal")
    matrix.set_yticks([i + 0.5 for i in range(count)], names, fontsize=8)
    matrix.set_xticks([i + 0.5 for i in range(count)], names, rotation=90, fontsize=8)
    matrix.set_title(
        "two settings in one run\n"
        "green: same bits as one process; grey: cannot be combined\n"
        "red: different bits in at least one run",
        fontsize=9,
    )
    matrix.tick_params(length=0)
    matrix.spines[:].set_visible(False)

    ordered = sorted(outcomes, key=lambda outcome: outcome.combination.layout.world_size)
    ranks = [outcome.combination.layout.world_size for outcome in ordered]
    firsts = {size: ranks.index(size) for size in dict.fromkeys(ranks)}
    measures = (
        ("seconds per step", [outcome.seconds for outcome in ordered], BLUE),
        ("peak memory, MB\n(largest rank)", [outcome.memory / 1e6 for outcome in ordered], GREEN),
        ("sent per step, MB\n(busiest rank)", [outcome.traffic / 1e6 for outcome in ordered], ORANGE),
    )
    for axes, (label, numbers, colour) in zip(columns, measures, strict=True):
        axes.barh(range(len(numbers)), numbers, height=0.8, color=colour)
        axes.set(xlim=(0, 1.3 * max(*numbers, 1e-9)), ylim=(len(numbers) - 0.5, -0.5))
        axes.set_title(label, fontsize=9)
        for first in firsts.values():
            axes.axhline(first - 0.5, color="grey", linewidth=0.8)
        axes.set_yticks([])
        axes.spines[["top", "right"]].set_visible(False)
    middles = [first + (ranks.count(size) - 1) / 2 for size, first in firsts.items()]
    columns[0].set_yticks(middles, [f"{size} rank{'s' * (size > 1)}" for size in firsts], fontsize=8)
    columns[0].tick_params(axis="y", length=0)
    return figure
