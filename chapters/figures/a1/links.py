"""Figure of a link: times of messages, the line alpha + n beta through them, and the all-reduce that it predicts."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS

COLOURS = (MEANINGS["communication"], MEANINGS["link between nodes"])
MARKERS = "os"


class Line(NamedTuple):
    """A message of n bytes takes ``alpha + n beta`` seconds."""

    alpha: float
    beta: float

    def seconds(self, nbytes: float) -> float:
        return self.alpha + nbytes * self.beta


def fit(times: Mapping[int, float]) -> Line:
    """Return the line through bytes -> seconds with the least sum of squared relative errors.

    Relative, since otherwise the largest messages alone decide, and alpha could be anything.
    """
    nbytes, seconds = (np.array(list(values), float) for values in (times.keys(), times.values()))
    lines = np.stack([1 / seconds, nbytes / seconds], axis=1)  # (sizes, 2)
    (alpha, beta), *_ = np.linalg.lstsq(lines, np.ones(len(nbytes)), rcond=None)
    return Line(float(alpha), float(beta))


def draw(panels: Mapping[str, Mapping[str, tuple[Mapping[int, float], Mapping[int, float]]]]):
    """Return a matplotlib Figure.

    Args:
        panels: title -> link -> (bytes -> seconds measured, bytes -> seconds of a formula).
    """
    figure, all_axes = subplots(11, 3.5, 1, len(panels), sharey=True)
    for axes, (title, links) in zip(all_axes, panels.items(), strict=True):
        for colour, marker, (name, (measured, formula)) in zip(COLOURS, MARKERS, links.items(), strict=False):
            axes.plot(list(formula), [1e6 * seconds for seconds in formula.values()], color=colour, lw=1.8, label=name)
            points = [1e6 * seconds for seconds in measured.values()]
            axes.plot(list(measured), points, marker, color=colour, markersize=7, fillstyle="none", markeredgewidth=1.6)
        axes.set(xscale="log", yscale="log", xlabel="bytes")
        axes.set_title(title, fontsize=10)
        axes.grid(alpha=0.3)
    figure.axes[0].set_ylabel("microseconds")
    figure.axes[0].legend(frameon=False, fontsize=9)
    return figure
