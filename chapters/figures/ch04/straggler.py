"""The slowest of N: how long a step takes if it ends when its last rank does."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES

COLOURS = tuple(SERIES[number] for number in (0, 5, 3, 2))


def slowest_of(quantile: Callable[[np.ndarray], np.ndarray], ranks: int, steps: int, rng) -> np.ndarray:
    """Return the times of ``steps`` steps, each the largest of ``ranks`` independent samples: (steps,).

    The largest of N samples is below x with probability F(x)^N. It is therefore the quantile at u^(1/N) of a single
    uniform number u, and a million ranks cost no more than one.

    Args:
        quantile: the quantile function of one rank's time, for probabilities from 0 to 1.
        rng: a ``numpy.random.Generator``.
    """
    return quantile(rng.random(steps) ** (1 / ranks))


def draw(kinds: Mapping[str, Callable[[np.ndarray], np.ndarray]], ranks: Sequence[int], steps: int, rng):
    """Return a matplotlib Figure: mean time of a step by the number of ranks, with a band for nine of ten steps.

    Args:
        kinds: label -> the quantile function of one rank's time, with a mean of about 1.
        ranks: the numbers of ranks, on a logarithmic axis.
        steps: how many to sample for each.
    """
    figure, axes = subplot(11, 3.3)
    for (label, quantile), colour in zip(kinds.items(), COLOURS, strict=False):
        times = [slowest_of(quantile, count, steps, rng) for count in ranks]
        low, high = np.quantile(times, [0.05, 0.95], axis=1)
        axes.fill_between(ranks, low, high, color=colour, alpha=0.15, linewidth=0)
        axes.plot(ranks, np.mean(times, axis=1), color=colour, marker="o", markersize=4, label=label)
    axes.axhline(1, color="#606060", linewidth=1, linestyle="--")
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks, [f"{count:,}" for count in ranks])
    axes.minorticks_off()
    axes.set_xlabel("ranks")
    axes.set_ylabel("time of a step / one rank's mean")
    axes.set_title("a step takes as long as its slowest rank", loc="left", fontsize=11)
    axes.legend(frameon=False, loc="upper left")
    return figure
