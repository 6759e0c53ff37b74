"""How far floating-point results lie apart, and a picture of it: a histogram of ulps.

An ulp (unit in the last place) is the step from one floating-point number to the next.
"""

from collections.abc import Mapping

import numpy as np

SAME, APART = "#009E73", "#D55E00"  # Okabe and Ito


def ulps_apart(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """For each element, how many steps lie from ``one`` to ``other``: int64, negative where ``other`` is smaller.

    Args:
        one, other: of the same shape, both float32 or both float64, of numbers that lie less than 2^63 steps apart.
    """
    if one.dtype != other.dtype or one.shape != other.shape or one.dtype.kind != "f":
        raise ValueError(f"cannot count ulps between {one.dtype}{one.shape} and {other.dtype}{other.shape}")
    return _ordinals(other) - _ordinals(one)


def _ordinals(values: np.ndarray) -> np.ndarray:
    """An integer for each number, that grows by one from each floating-point number to the next."""
    bits = np.ascontiguousarray(values).view(f"i{values.itemsize}").astype(np.int64)
    return np.where(bits >= 0, bits, -(1 << (8 * values.itemsize - 1)) - bits)


def count_ulps(apart: np.ndarray, most: int) -> np.ndarray:
    """The share of elements at -most, ..., -1, 0, 1, ..., most ulps; those farther away are counted at the ends."""
    counts = np.bincount(np.clip(apart, -most, most).reshape(-1) + most, minlength=2 * most + 1)
    return counts / apart.size


def draw(panels: Mapping[str, np.ndarray], most: int = 5):
    """A Figure with one histogram for each array of ulps, side by side; what has not changed stands out in green.

    Args:
        panels: title -> distances, as ``ulps_apart`` returns them.
        most: distances of more than this share the outermost bars.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.9), layout="constrained")
    distances = np.arange(-most, most + 1)
    for axes, (title, apart) in zip(
        figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
    ):
        shares = 100 * count_ulps(apart, most)
        axes.bar(distances, shares, color=[SAME if distance == 0 else APART for distance in distances], width=0.85)
        changed = 100 * np.count_nonzero(apart) / apart.size
        axes.set_title(title, loc="left", fontsize=11)
        note = "every bit the same" if changed == 0 else f"{changed:.0f} % of the sums\nhave other bits"
        axes.text(0.98, 0.95, note, transform=axes.transAxes, ha="right", va="top", color=APART if changed else SAME)
        axes.set_xticks([-most, 0, most], [f"≤ −{most}", "0", f"≥ {most}"])
        axes.set_xlabel("ulps apart")
        axes.set_ylim(0, 128)
        axes.set_yticks([0, 50, 100])
        axes.spines[["top", "right"]].set_visible(False)
    figure.axes[0].set_ylabel("% of the sums")
    return figure
