"""Which two settings are to blame: for every two that met, the share of their runs that ended on other bits.

A fault that shows where two settings meet spoils all runs in which they do, and with each of these runs every other
pair of settings in it. Those other pairs have met in good runs too. So what to look for is a pair whose runs are *all*
bad, while each of its two settings alone has good runs.
"""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from minidist.show.grid import COLOURS, DIFFERENT, IMPOSSIBLE, SAME, values_of
from minidist.verify.matrix import Outcome, Pair


def shares(outcomes: Sequence[Outcome]) -> dict[Pair, tuple[int, int]]:
    """For every two settings that met, in how many runs the bits were others, and in how many they met at all."""
    met: Counter = Counter()
    bad: Counter = Counter()
    for outcome in outcomes:
        met.update(outcome.combination.pairs)
        if not outcome.same:
            bad.update(outcome.combination.pairs)
    return {pair: (bad[pair], count) for pair, count in met.items()}


def suspects(outcomes: Sequence[Outcome]) -> list[Pair]:
    """The pairs that have no good run, and the most bad ones."""
    always = {pair: bad for pair, (bad, met) in shares(outcomes).items() if bad == met}
    most = max(always.values(), default=0)
    return sorted((pair for pair, bad in always.items() if bad == most), key=lambda pair: sorted(map(str, pair)))


def draw(outcomes: Sequence[Outcome], title: str = ""):
    """A matplotlib Figure: the grid of pairs; green where all runs had the right bits, the redder the more had not."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    values = values_of([outcome.combination for outcome in outcomes])
    names = [f"{key}={value}" for key, value in values]
    found, count = shares(outcomes), len(values)
    cells = np.full((count, count), np.nan)
    figure = Figure(figsize=(11, 8), layout="constrained")
    axes = figure.subplots()
    axes.set_facecolor("white")
    for y, x in zip(*np.tril_indices(count, -1), strict=True):
        bad, met = found.get(frozenset((values[y], values[x])), (0, 0))
        cells[y, x] = -1 if not met else bad / met
        if bad:
            colour = "white" if bad == met else "black"
            axes.text(x + 0.5, y + 0.5, f"{bad}/{met}", ha="center", va="center", fontsize=7, color=colour)
    grey = np.ma.masked_not_equal(cells, -1)
    axes.pcolormesh(grey, cmap=LinearSegmentedColormap.from_list("", [COLOURS[IMPOSSIBLE]] * 2), edgecolors="white")
    stops = [(0, COLOURS[SAME]), (0.001, "#FFF0E0"), (1, COLOURS[DIFFERENT])]
    shades = LinearSegmentedColormap.from_list("", stops, 1001)
    met_cells = np.ma.masked_invalid(np.ma.masked_equal(cells, -1))
    axes.pcolormesh(met_cells, cmap=shades, vmin=0, vmax=1, edgecolors="white", linewidth=1)
    axes.set(xlim=(0, count), ylim=(count, 0), aspect="equal")
    axes.set_yticks([i + 0.5 for i in range(count)], names, fontsize=8)
    axes.set_xticks([i + 0.5 for i in range(count)], names, rotation=90, fontsize=8)
    axes.set_title(title, fontsize=11)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    return figure
