"""Low rank: the singular values of matrices, and how PowerSGD's error falls from step to step."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplot
from minidist.show.palette import PAPER, SERIES


def spectra(values: Mapping[str, np.ndarray]):
    """Draw the singular values of each matrix over its largest; return a matplotlib Figure."""
    figure, axes = subplot(8, 2.8)
    for one in values.values():
        axes.plot(np.arange(1, len(one) + 1), one / one[0], ".-", lw=0.8)
    axes.set(yscale="log", ylim=(1e-3, 1.2))
    axes.set_xlabel("singular value", fontsize=9)
    axes.set_ylabel("share of the largest", fontsize=9)
    return figure


def errors(warm: Sequence[Sequence[float]], refilled: Sequence[Sequence[float]]):
    """Draw the errors of each start, as multiples of the best, over the steps; return a matplotlib Figure."""
    figure, axes = subplot(7, 2.7)
    for name, curves, colour in (("refilled at random", refilled, SERIES[1]), ("warm start", warm, SERIES[0])):
        for number, curve in enumerate(curves):
            axes.plot(range(1, len(curve) + 1), curve, color=colour, lw=1.1, label=None if number else name)
    axes.axhline(1, color=PAPER["faint"], ls=":")
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel("error / best of rank 2", fontsize=9)
    axes.set_ylim(0.9, 3.1)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    return figure
