"""Local steps on a plane: workers that drift apart, and what joins them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.show.palette import PAPER, SERIES

TOGETHER = PAPER["ink"]


@dataclass(frozen=True)
class Round:
    """One round: where it starts, the paths of all workers, and where it leads."""

    start: np.ndarray  # (2,)
    paths: list[np.ndarray]  # (steps + 1, 2) each
    end: np.ndarray  # (2,)


def rounds_of(
    goals: np.ndarray, curvature: np.ndarray, start: np.ndarray, local_steps: int, rounds: int, lr: float,
    outer_lr: float, outer_momentum: float,
) -> list[Round]:  # fmt: skip
    """Let workers descend their own parabolas, curvature (x - goal)^2 / 2, apart; then take an outer Nesterov step.

    Args:
        goals: of each worker.  (workers, 2)
        curvature: along both axes.  (2,)
    """
    from minidist.parallel.loosened.local import outer_step

    start, momentum = np.array(start, float), np.zeros(2)
    found = []
    for _ in range(rounds):
        paths = []
        for goal in goals:
            path = [start.copy()]
            for _ in range(local_steps):
                path.append(path[-1] - lr * curvature * (path[-1] - goal))
            paths.append(np.array(path))
        before = start.copy()
        outer_step(start, before - np.mean([path[-1] for path in paths], axis=0), momentum, outer_lr, outer_momentum)
        found.append(Round(before, paths, start.copy()))
    return found


def draw(panels: Sequence[tuple[str, Sequence[Round]]], goals: np.ndarray, curvature: np.ndarray):
    """Return a matplotlib Figure: the rounds of each panel, over the contours of the mean of all workers' parabolas."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.8), layout="constrained")
    all_axes = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    x, y = np.meshgrid(np.linspace(-1.4, 4.4, 120), np.linspace(-1.6, 3.4, 120))
    centre = goals.mean(axis=0)
    height = curvature[0] * (x - centre[0]) ** 2 + curvature[1] * (y - centre[1]) ** 2
    for axes, (title, rounds) in zip(all_axes, panels, strict=True):
        axes.contour(x, y, height, levels=12, colors=PAPER["faint"], linewidths=0.7)
        for worker, goal in enumerate(goals):
            axes.plot(*goal, "x", color=SERIES[worker], ms=8, mew=2)
        for one in rounds:
            for worker, path in enumerate(one.paths):
                axes.plot(*path.T, ".-", color=SERIES[worker], ms=3, lw=1)
            axes.annotate(
                "", one.end, one.start, arrowprops={"arrowstyle": "-|>", "color": TOGETHER, "lw": 1.5}, zorder=5
            )
        axes.plot(*centre, "*", color=TOGETHER, ms=13)
        axes.set_title(title, fontsize=10)
        axes.set(xticks=[], yticks=[])
    return figure
