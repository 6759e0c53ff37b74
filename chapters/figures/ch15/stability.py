"""Gradient descent on a parabola with old gradients: for which rates it converges, and three runs."""

from collections.abc import Callable, Sequence
from math import pi, sin

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import PAPER, SERIES


def largest_root(lr: float, delay: int) -> float:
    """Return the factor by which x changes in each step of a long run: the largest root of z^(d+1) - z^d + lr."""
    coefficients = np.zeros(delay + 2)
    coefficients[:2] = 1, -1
    coefficients[-1] += lr
    return float(np.abs(np.roots(coefficients)).max())


def draw(
    delays: Sequence[int], runs: Sequence[tuple[int, float]], descent: Callable[[float, int, int], Sequence[float]]
):
    """Return a matplotlib Figure: a map of rates and delays with the bound, and beside it some runs.

    Args:
        delays: from 0.
        runs: (delay, rate) of each run to show.
        descent: x(0) ... x(steps) for a rate, a delay and a number of steps.
    """
    from matplotlib.colors import TwoSlopeNorm

    figure, (left, right) = subplots(11, 3.6, 1, 2, width_ratios=(3, 2))
    rates = np.linspace(0.01, 2.2, 220)
    roots = np.array([[largest_root(rate, delay) for delay in delays] for rate in rates])  # (rates, delays)
    shown = left.pcolormesh(
        delays, rates, np.clip(roots, 0.4, 1.6), cmap="RdBu_r", norm=TwoSlopeNorm(1, 0.4, 1.6), shading="nearest"
    )
    bar = figure.colorbar(shown, ax=left)
    bar.set_label("x changes by this factor in each step", fontsize=9)
    bound = [2 * sin(pi / (2 * (2 * delay + 1))) for delay in delays]
    quickest = [delay**delay / (delay + 1) ** (delay + 1) for delay in delays]
    left.plot(delays, bound, "o-", color=PAPER["ink"], lw=1.2, label="largest stable rate")
    left.plot(delays, quickest, "s--", color=PAPER["ink"], mfc="white", lw=1, label="quickest")
    for number, (delay, rate) in enumerate(runs):
        left.plot(delay, rate, "*", ms=15, color=SERIES[number], mec="white")
        xs = descent(rate, delay, 30)
        right.plot(xs, color=SERIES[number], label=f"delay {delay}, rate {rate:g}")
    left.set(ylim=(0, 2.2), xticks=list(delays))
    left.set_xlabel("delay, steps", fontsize=9)
    left.set_ylabel("learning rate", fontsize=9)
    left.legend(fontsize=9)
    right.axhline(0, color=PAPER["faint"], lw=1)
    right.set(ylim=(-2.2, 3.4))
    right.set_xlabel("steps", fontsize=9)
    right.set_ylabel("x", fontsize=9)
    right.legend(frameon=False, fontsize=9, loc="upper left", ncols=2)
    for axes in (left, right):
        axes.tick_params(labelsize=8.5)
    bar.ax.tick_params(labelsize=8.5)
    return figure
