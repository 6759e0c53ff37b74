"""Accumulated rounding errors of several rounding rules."""

from collections.abc import Mapping, Sequence

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES, on_paper

COLOURS = (SERIES[1], SERIES[5], on_paper("result"))


def draw(drift: Mapping[str, Sequence[float]]):
    """Return a matplotlib Figure with one curve for each rule.

    Args:
        drift: rule -> accumulated error after each addition, in steps between neighbouring numbers.
    """
    figure, axes = subplot(11, 3)
    for (name, errors), colour in zip(drift.items(), COLOURS, strict=True):
        axes.plot(errors, color=colour, linewidth=2, label=name)
    axes.set(xlabel="additions", ylabel="accumulated error, steps", xlim=(0, len(errors)))
    axes.legend(frameon=False, loc="upper left")
    return figure
