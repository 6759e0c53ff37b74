"""The magnitudes of the numbers in a training step, against the range of a format (nn/precision/formats.py)."""

from collections.abc import Mapping
from math import log2

import numpy as np

from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS, SHARES, on_paper

LOST, COARSE, GOOD, TOO_LARGE = MEANINGS["lost"], SHARES[1], on_paper("result"), on_paper("wrong")


def bounds(format) -> tuple[float, float, float]:
    """Return the bounds below which a number is rounded to 0 or subnormal, and the one above which it is too large."""
    return format.smallest / 2, 2.0 ** (1 - format.bias), format.largest


def shares(values: np.ndarray, format) -> dict[str, float]:
    """Return the shares of the nonzero numbers that become 0, become subnormal, fit, and are too large.

    A number less than half a step beyond the largest is rounded down to it; here it counts as too large.
    """
    sizes = np.abs(values[values != 0].astype(np.float64))
    zero, normal, most = bounds(format)
    found = {"lost": sizes <= zero, "subnormal": (sizes > zero) & (sizes < normal), "too large": sizes > most}
    found = {name: float(np.mean(which)) for name, which in found.items()}
    return found | {"fits": 1 - sum(found.values())}


def draw(panels: Mapping[str, np.ndarray], format, low: int, high: int):
    """Return a matplotlib Figure: a histogram for each title, coloured by what the format does to such numbers.

    Args:
        panels: title -> numbers; zeros are ignored.
        low, high: the range in powers of two; numbers outside count in the outermost bars.
    """
    zero, normal, most = bounds(format)
    figure, grid = subplots(11, 1.0 + 1.75 * len(panels), len(panels), 1, sharex=True)
    for axes, (title, values) in zip(grid, panels.items(), strict=True):
        counts = histogram(values, low, high)
        for exponent, count in zip(range(low, high), counts, strict=True):
            size = 2.0 ** (exponent + 0.5)
            colour = LOST if size < zero else COARSE if size < normal else TOO_LARGE if size > most else GOOD
            axes.bar(exponent + 0.5, 100 * count, 0.92, color=colour)
        for edge in (zero, normal, most):
            axes.axvline(log2(edge), color="#606060", linewidth=0.9, linestyle="--")
        found = shares(values, format)
        top = axes.get_xaxis_transform()
        for left, right, name, colour in (
            (low, log2(zero), f"becomes 0\n{found['lost']:.1%}", LOST),
            (log2(zero), log2(normal), f"subnormal: loses bits\n{found['subnormal']:.1%}", "#B27A00"),
            (log2(normal), min(high, log2(most)), f"fits\n{found['fits']:.1%}", GOOD),
            (log2(most), high, f"infinite\n{found['too large']:.1%}", TOO_LARGE),
        ):
            if right > left:
                axes.text(
                    (left + right) / 2, 0.97, name, transform=top, ha="center", va="top", color=colour, fontsize=9
                )
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_ylabel("%", fontsize=9)
        axes.set_ylim(0, 160 * counts.max())
    axes.set_xlim(low, high)
    axes.set_xlabel("magnitude, as a power of two")
    return figure


def histogram(values: np.ndarray, low: int, high: int) -> np.ndarray:
    """Return the share of the nonzero numbers from 2^e up to 2^(e + 1), for each e from ``low`` to ``high - 1``."""
    sizes = np.abs(values[values != 0])
    exponents = np.frexp(sizes)[1] - 1  # frexp's mantissa is from 0.5 on
    return np.bincount(np.clip(exponents, low, high - 1) - low, minlength=high - low) / sizes.size
