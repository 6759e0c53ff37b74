"""The matrix of all settings: which of them have been run together, whether the bits agreed, and what it cost."""

from collections.abc import Sequence

import numpy as np

from minidist.show.palette import RANKS
from minidist.verify.matrix import KEYS, MODES, POLICIES, SCHEDULES, Combination, Outcome, Pair

BLUE, RED, GREEN, _, _, ORANGE = RANKS[:6]
NAMES = [*POLICIES, *SCHEDULES, *MODES]  # values that are no numbers, in their order
SAME, DIFFERENT, IMPOSSIBLE = "same", "different", "impossible"
COLOURS = {SAME: GREEN, DIFFERENT: RED, IMPOSSIBLE: "#eeeeee"}
SIGNS = {SAME: "+", DIFFERENT: "X", IMPOSSIBLE: "."}


def values_of(combinations: Sequence[Combination]) -> list[tuple[str, object]]:
    """Every value of every setting that occurs, in the order of the settings."""
    found = {pair for combination in combinations for pair in combination.settings.items() if pair[1] is not None}
    return [
        (key, value)
        for key in KEYS
        for value in sorted((v for k, v in found if k == key), key=lambda v: NAMES.index(v) if v in NAMES else v)
    ]


def meetings(outcomes: Sequence[Outcome]) -> dict[Pair, str]:
    """For every two settings that were run together, whether the bits of all these runs agreed with one process's."""
    found: dict[Pair, str] = {}
    for outcome in outcomes:
        for pair in outcome.combination.pairs:
            if not outcome.same:
                found[pair] = DIFFERENT
            found.setdefault(pair, SAME)
    return found


def grid(outcomes: Sequence[Outcome]) -> tuple[list[tuple[str, object]], list[list[str]]]:
    """The values of all settings, and for each of them, and each before it, how their runs ended."""
    values = values_of([outcome.combination for outcome in outcomes])
    met = meetings(outcomes)
    rows = [
        [met.get(frozenset((row, column)), IMPOSSIBLE) for column in values[:position]]
        for position, row in enumerate(values)
    ]
    return values, rows


def as_text(outcomes: Sequence[Outcome]) -> str:
    """The grid for a terminal: a row and a column for each value, + where the bits agreed, X where not."""
    values, rows = grid(outcomes)
    names = [f"{key}={value}" for key, value in values]
    width = max(map(len, names))
    lines = []
    for name, row in zip(names, rows, strict=True):
        lines.append(f"{name:>{width}}  " + " ".join(SIGNS[cell] for cell in row))
    return "\n".join(lines[1:])


def draw(outcomes: Sequence[Outcome], title: str = ""):
    """A matplotlib figure: the grid of pairs, and beside it what each run cost, those of the fewest ranks first.

    Args:
        outcomes: of the runs.
        title: above it all.
    """
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    values, rows = grid(outcomes)
    names = [f"{key}={value}" for key, value in values]
    count = len(values)
    figure = Figure(figsize=(15, 8), layout="constrained")
    figure.suptitle(title)
    whole, *columns = figure.subplots(1, 4, width_ratios=(8, 2, 2, 2))

    cells = np.full((count, count), np.nan)
    for y, row in enumerate(rows):
        cells[y, :y] = [list(COLOURS).index(cell) for cell in row]
    colours = ListedColormap(list(COLOURS.values()))
    whole.pcolormesh(cells, cmap=colours, vmin=0, vmax=len(COLOURS) - 1, edgecolors="white", linewidth=1)
    for i in range(1, count):
        if values[i][0] != values[i - 1][0]:  # another setting begins
            whole.plot([0, i], [i, i], color="grey", linewidth=0.8)
            whole.plot([i, i], [i, count], color="grey", linewidth=0.8)
    whole.set(xlim=(0, count), ylim=(count, 0), aspect="equal")
    whole.set_yticks([i + 0.5 for i in range(count)], names, fontsize=8)
    whole.set_xticks([i + 0.5 for i in range(count)], names, rotation=90, fontsize=8)
    whole.set_title(
        "two settings in one run\ngreen: the bits of one process; orange: others in one of their runs; grey: never meet"
    )
    whole.tick_params(length=0)
    whole.spines[:].set_visible(False)

    ordered = sorted(outcomes, key=lambda outcome: outcome.combination.layout.world_size)
    ranks = [outcome.combination.layout.world_size for outcome in ordered]
    firsts = {size: ranks.index(size) for size in dict.fromkeys(ranks)}
    measures = (
        ("seconds a step", [outcome.seconds for outcome in ordered], BLUE),
        ("MB at most,\nthe fullest rank", [outcome.memory / 1e6 for outcome in ordered], GREEN),
        ("MB sent a step,\nthe busiest rank", [outcome.traffic / 1e6 for outcome in ordered], ORANGE),
    )
    for axes, (label, numbers, colour) in zip(columns, measures, strict=True):
        axes.barh(range(len(numbers)), numbers, height=0.8, color=colour)
        axes.set(xlim=(0, 1.3 * max(*numbers, 1e-9)), ylim=(len(numbers) - 0.5, -0.5), title=label)
        for size, first in firsts.items():
            axes.axhline(first - 0.5, color="grey", linewidth=0.8)
            axes.text(
                1,
                first - 0.3,
                f"ranks: {size} ",
                transform=axes.get_yaxis_transform(),
                ha="right",
                va="top",
                fontsize=7,
            )
        axes.set_yticks([])
        axes.spines[["top", "right"]].set_visible(False)
    return figure
