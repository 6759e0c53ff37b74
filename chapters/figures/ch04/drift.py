"""Figure of how two runs of one training diverge: how many of their weights differ, and by how much."""

from collections.abc import Mapping, Sequence

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import SERIES, on_paper

SAME = on_paper("result")
COLOURS = tuple(SERIES[number] for number in (0, 5, 3, 4, 1))


def share_different(one: np.ndarray, other: np.ndarray) -> float:
    """Return the share of elements whose bits differ."""
    bits = f"u{one.itemsize}"
    return float(np.mean(np.ascontiguousarray(one).view(bits) != np.ascontiguousarray(other).view(bits)))


def relative_distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return |one - other| / |one| in the Euclidean norm, computed in float64."""
    one, other = one.astype(np.float64), other.astype(np.float64)
    return float(np.linalg.norm(one - other) / np.linalg.norm(one))


def draw(pairs: Mapping[str, tuple[Sequence[np.ndarray], Sequence[np.ndarray]]]):
    """Return a matplotlib Figure of two panels: the share of weights that differ between two runs, and their distance.

    Args:
        pairs: label -> all weights, flat, after each step of one run, and of another. A pair that never diverges is
            drawn in green, at zero.
    """
    figure, (left, right) = subplots(11, 3.3, 1, 2)
    colours = iter(COLOURS * len(pairs))
    for label, (ones, others) in pairs.items():
        shares = [100 * share_different(one, other) for one, other in zip(ones, others, strict=True)]
        distances = [relative_distance(one, other) for one, other in zip(ones, others, strict=True)]
        steps = np.arange(1, len(shares) + 1)
        same = not any(shares)
        style = {"color": SAME if same else next(colours), "linewidth": 3 if same else 1.8, "marker": "o"}
        left.plot(steps, shares, markersize=4, label=label, **style)
        right.plot(steps, distances, markersize=4, **style)
    left.set_title("weights whose bits differ, %", loc="left", fontsize=11)
    left.set_ylim(-4, 104)
    right.set_title("relative distance of all weights", loc="left", fontsize=11)
    right.set_yscale("symlog", linthresh=1e-9)
    right.set_ylim(bottom=-2e-10)
    for axes in (left, right):
        axes.set_xlabel("steps taken")
        axes.grid(axis="y", color="#E8E8E8")
    figure.legend(loc="outside lower center", ncols=len(pairs), frameon=False)
    return figure
