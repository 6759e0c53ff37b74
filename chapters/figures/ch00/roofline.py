"""The roofline: the highest speed at which work can run, given its arithmetic intensity in FLOPs per byte moved.

Left of the ridge the limit is memory bandwidth, a slope; right of it the limit is arithmetic, a flat roof (Williams,
Waterman and Patterson, "Roofline: an insightful visual performance model", 2009).
"""

from collections.abc import Mapping, Sequence

import numpy as np

COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7")
SLOPE, FLAT = "#E69F00", "#56B4E9"  # memory-bound, compute-bound

Work = tuple[str, float, float | None]  # label, FLOPs per byte, FLOP/s (None: not measured, so on the roof)


def roof(peak: float, bandwidth: float, low: float, high: float) -> tuple[np.ndarray, np.ndarray]:
    """The corners of the roof: both ends and the ridge between them.

    Args:
        peak: FLOP/s.
        bandwidth: bytes/s.
        low, high: the intensities at both ends, in FLOPs per byte.

    Returns:
        intensities and FLOP/s, (3,) each.
    """
    ridge = peak / bandwidth
    return np.array([low, ridge, high]), np.array([low * bandwidth, peak, peak])


def height(intensity: float, peak: float, bandwidth: float) -> float:
    """The roof at one intensity: straight lines between the corners, on two logarithmic axes."""
    ridge = peak / bandwidth
    corners = roof(peak, bandwidth, min(intensity, ridge) / 2, max(intensity, ridge) * 2)
    return float(np.exp(np.interp(np.log(intensity), *np.log(corners))))


def draw(peak: float, bandwidth: float, series: Mapping[str, Sequence[Work]], title: str):
    """A matplotlib Figure of the roof and of several series of work: filled dots are measured, hollow ones computed."""
    from matplotlib.figure import Figure

    intensities = [intensity for works in series.values() for _, intensity, _ in works] + [peak / bandwidth]
    low, high = min(intensities) / 3, max(intensities) * 5
    x, y = roof(peak, bandwidth, low, high)
    figure = Figure(figsize=(9, 4.3), layout="constrained")
    axes = figure.subplots()
    bottom = min([y[0]] + [speed for works in series.values() for *_, speed in works if speed]) / 2
    axes.fill_between(x[:2], y[:2], bottom, color=SLOPE, alpha=0.13, linewidth=0)
    axes.fill_between(x[1:], y[1:], bottom, color=FLAT, alpha=0.16, linewidth=0)
    axes.plot(x[:2], y[:2], color=SLOPE, linewidth=3)
    axes.plot(x[1:], y[1:], color=FLAT, linewidth=3)
    axes.plot([x[1], x[1]], [bottom, peak], color="#808080", linewidth=1, linestyle=":")
    axes.text(x[1] * 1.06, bottom * 1.15, f"ridge: {x[1]:.3g} FLOPs per byte", color="#606060", fontsize=9)
    for (name, works), colour in zip(series.items(), COLOURS, strict=False):
        places = [(i, height(i, peak, bandwidth) if speed is None else speed) for _, i, speed in works]
        filled = all(speed is not None for *_, speed in works)
        axes.plot(
            *zip(*places, strict=True),
            marker="o",
            markersize=7,
            linestyle="none",
            color=colour,
            markerfacecolor=colour if filled else "white",
            markeredgewidth=2,
            label=name,
            zorder=3,
        )
        for (label, *_), place in zip(works, places, strict=True):
            axes.annotate(label, place, (7, -12), textcoords="offset points", fontsize=9, color=colour)
    axes.set(xscale="log", yscale="log", xlim=(low, high), ylim=(bottom, peak * 2.2))
    axes.set_xlabel("arithmetic intensity: FLOPs per byte moved")
    axes.set_ylabel("FLOP/s")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", frameon=False)
    return figure
