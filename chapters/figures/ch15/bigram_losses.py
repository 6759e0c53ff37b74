"""The bigram model's losses: over the rate of an update, and over time."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplot, subplots
from minidist.show.palette import MEANINGS, PAPER, SERIES

COLOURS = (MEANINGS["synchronous"], MEANINGS["bounded"], MEANINGS["asynchronous"])


def over_rates(rates: Sequence[float], ends: Mapping[int, np.ndarray]):
    """Draw a band of seeds for each number of workers; return a matplotlib Figure.

    Args:
        ends: workers -> losses.  (seeds, rates)
    """
    figure, axes = subplot(8, 3)
    for place, (workers, losses) in enumerate(ends.items()):
        axes.fill_between(rates, losses.min(axis=0), losses.max(axis=0), color=SERIES[place], alpha=0.25, lw=0)
        name = f"{workers} workers: staleness {workers - 1}" if workers > 1 else "1 worker: no staleness"
        axes.plot(rates, losses.mean(axis=0), "o-", color=SERIES[place], ms=4, label=name)
    axes.set(xscale="log", ylim=(2.5, 4.6))
    axes.set_xticks(rates, rates)
    axes.minorticks_off()
    axes.set_xlabel("rate of each update", fontsize=9)
    axes.set_ylabel("loss, nats per byte", fontsize=9)
    axes.legend(frameon=False, fontsize=9)
    return figure


def over_time(panels: Mapping[str, Mapping[str, Sequence]], goal: float):
    """Draw, for each scene, the curves of each mode's seeds; return a matplotlib Figure.

    Args:
        panels: scene -> mode -> curves of (second, loss).
        goal: loss to mark.
    """
    figure, all_axes = subplots(11, 3, 1, len(panels), sharey=True)
    for axes, (scene, modes) in zip(all_axes, panels.items(), strict=True):
        for place, (mode, curves) in enumerate(modes.items()):
            for number, curve in enumerate(curves):
                label = None if number else mode
                axes.plot(*zip(*curve, strict=True), color=COLOURS[place], lw=1.2, label=label)
        axes.axhline(goal, color=PAPER["faint"], lw=0.8, ls=":")
        longest = max(second for curves in modes.values() for curve in curves for second, _ in curve)
        axes.set(xlim=(0, 0.65 * longest), ylim=(2.6, 4.5), title=scene, xlabel="seconds")
    all_axes[0].set_ylabel("loss, nats per byte", fontsize=9)
    all_axes[0].legend(frameon=False, fontsize=9)
    return figure
