"""Figure of which numbers a format (nn/precision/formats.py) has: its range, and the distance between neighbours."""

from collections.abc import Sequence
from math import log2

import numpy as np

from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES

COLOURS = {  # of Okabe and Ito
    "float32": SERIES[7],
    "bfloat16": SERIES[0],
    "float16": SERIES[1],
    "e4m3": SERIES[2],
    "e5m2": SERIES[3],
}
FLOAT32 = 23, 127, -149, 2.0**128  # mantissa, bias, exponent of the smallest number, the first beyond the largest


def corners(format) -> list[tuple[float, float]]:
    """Return a format's line: for a number 2^x, the exponent of the distance to the next number, relative to 2^x.

    Between two powers of two the distance is constant, so that the relative distance falls by half and jumps back; the
    line connects the powers of two alone. None means float32.
    """
    if format is None:
        mantissa, bias, smallest, end = FLOAT32
    else:
        mantissa, bias, end = format.mantissa, format.bias, format.largest
        smallest = round(log2(format.smallest))
    normal = 1 - bias
    return [(smallest, 0.0), (normal, -mantissa), (log2(end), -mantissa)]


def numbers_between(format, low: float, high: float) -> np.ndarray:
    """Return all numbers of an 8-bit or 16-bit format from ``low`` to ``high``, in ascending order."""
    every = format.decode(np.arange(1 << format.bits, dtype=np.uint32).astype(format.dtype))
    return np.unique(every[(every >= low) & (every <= high)])


def draw(formats: Sequence):
    """Return a matplotlib Figure of range (across) and precision (down), for these formats and float32."""
    figure, axes = subplot(11, 4.3)
    for name, format in {"float32": None, **{format.name: format for format in formats}}.items():
        line = corners(format)
        exponents, spacings = zip(*line, strict=True)
        axes.plot(exponents, spacings, color=COLOURS[name], linewidth=2.4, solid_capstyle="butt")
        axes.plot(exponents[::2], spacings[::2], "o", color=COLOURS[name], markersize=5)
        if name in ("float32", "bfloat16"):
            axes.text(60, spacings[-1] + 0.5, name, color=COLOURS[name], fontsize=10)
        else:
            axes.text(exponents[-1] + 2.5, spacings[-1], name, color=COLOURS[name], va="center", fontsize=10)
    axes.set_xlabel("the number, as a power of two: 2^x")
    axes.set_ylabel("relative distance\nto the next number: 2^y")
    axes.set_yticks([0, -2, -3, -7, -10, -23])
    axes.set_xticks([-149, -126, -100, -75, -50, -24, -14, 0, 16, 50, 75, 100, 128])
    axes.set_ylim(-25, 1.5)
    axes.grid(color="#EAEAEA", linewidth=0.8)
    axes.set_axisbelow(True)
    return figure


def draw_ticks(formats: Sequence, low: float, high: float):
    """Return a matplotlib Figure: a line for each format, with a tick at each number from ``low`` to ``high``."""
    figure, axes = subplot(11, 0.7 + 0.36 * len(formats))
    for row, format in enumerate(formats):
        numbers = numbers_between(format, low, high)
        axes.vlines(
            numbers, row - 0.3, row + 0.3, color=COLOURS[format.name], linewidth=1 if len(numbers) > 200 else 1.8
        )
    axes.set_yticks(range(len(formats)), [format.name for format in formats])
    axes.set_ylim(len(formats) - 0.5, -0.5)
    axes.set_xlim(low, high)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    return figure
