"""Error feedback, step by step: what one worker's gradient is, what it sends, and what stays behind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS, PAPER


@dataclass(frozen=True)
class Sent:
    """One step of one worker: arrays of one shape."""

    gradient: np.ndarray
    old_residual: np.ndarray
    sent: np.ndarray


def steps_of(gradients: Sequence[np.ndarray], send: Callable, feed_back: Callable) -> list[Sent]:
    """Return what a worker with error feedback sends and keeps of these gradients, one after the other."""
    residual, found = np.zeros_like(gradients[0]), []
    for gradient in gradients:
        sent, left = feed_back(gradient, residual, send)
        found.append(Sent(gradient, residual, sent))
        residual = left
    return found


def draw(steps: Sequence[Sent], show: Sequence[int]):
    """Return a matplotlib Figure: a panel for each shown step. A bar is an element: its gradient, and stacked on it the
    old residual; what is sent has a dark frame."""
    from matplotlib.patches import Patch

    figure, all_axes = subplots(11, 2.9, 1, len(show), sharey=True)
    for axes, number in zip(all_axes, show, strict=True):
        step = steps[number]
        places = np.arange(step.gradient.size)
        axes.bar(places, step.gradient, color=MEANINGS["gradients"])
        axes.bar(places, step.old_residual, bottom=step.gradient, color=MEANINGS["communication"], alpha=0.75)
        taken = np.flatnonzero(step.sent)
        axes.bar(taken, step.sent[taken], color="none", edgecolor=PAPER["ink"], linewidth=2.2)
        axes.axhline(0, color=PAPER["ink"], lw=0.8)
        axes.set_title(f"step {number}", fontsize=10)
        axes.set_xticks(places)
        axes.set_xlabel("element", fontsize=9)
        axes.tick_params(labelsize=8.5)
    handles = [
        Patch(color=MEANINGS["gradients"], label="gradient"),
        Patch(color=MEANINGS["communication"], alpha=0.75, label="left behind so far"),
        Patch(fill=False, edgecolor=PAPER["ink"], linewidth=2.2, label="sent"),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=3, frameon=False, fontsize=9)
    return figure
