"""Optimizers on their way down a valley that is steep across and flat along."""

from collections.abc import Callable, Mapping

import numpy as np

from minidist.nn.layers import Parameter
from minidist.nn.optim.optimizers import Optimizer
from minidist.show.palette import SERIES

CURVATURE = np.array([1.0, 60.0])


def descend(make_optimizer: Callable[[Parameter], Optimizer], steps: int = 60) -> np.ndarray:
    """Return the path of an optimizer down (x^2 + 60 y^2) / 2 from (-2, 1): (steps + 1, 2)."""
    place = Parameter((2,))
    place.name, place.data = "place", np.array([-2.0, 1.0])
    optimizer, path = make_optimizer(place), [place.data.copy()]
    for _ in range(steps):
        place.grad = None
        (place * place * (CURVATURE / 2)).sum().backward()
        optimizer.step()
        path.append(place.data.copy())
    return np.array(path)


def draw(paths: Mapping[str, np.ndarray]):
    """Return a matplotlib Figure of three optimizers' paths; each label says how far from the minimum the path ends."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    axes = figure.subplots()
    x, y = np.meshgrid(np.linspace(-2.2, 0.6, 200), np.linspace(-1.1, 1.15, 200))
    heights = (CURVATURE[0] * x**2 + CURVATURE[1] * y**2) / 2
    axes.contour(x, y, np.log(heights + 0.03), 14, colors="#D0D0D0", linewidths=0.8)
    for (name, path), colour in zip(paths.items(), (SERIES[5], SERIES[3], SERIES[2]), strict=True):
        label = f"{name}: ends {np.hypot(*path[-1]):.2f} away"
        axes.plot(*path.T, ".-", color=colour, linewidth=1, markersize=4, label=label)
    axes.plot(0, 0, "k*", markersize=10)
    axes.set_title(f"{len(path) - 1} steps down a valley", loc="left", fontsize=11)
    axes.legend(frameon=False, loc="upper right")
    return figure
