"""Errors of finite differences against the distance h."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES


def draw(steps: Sequence[float], errors: Mapping[str, Sequence[float]], title: str):
    """Return a matplotlib Figure with a curve for each dtype, on logarithmic axes.

    Args:
        steps: distances h.
        errors: dtype -> |finite difference - gradient| at each distance.
    """
    figure, axes = subplot(7.5, 3.6)
    for (name, values), colour in zip(errors.items(), (SERIES[5], SERIES[0]), strict=True):
        axes.loglog(steps, np.maximum(values, 1e-17), "o-", color=colour, markersize=4, label=name)
    axes.set(xlabel="h", ylabel="|finite difference - gradient|", title=title)
    axes.legend(frameon=False)
    return figure
