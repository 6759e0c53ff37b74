"""Rounding error of a tensor against the size of its numbers, with and without a scale."""

from collections.abc import Mapping, Sequence

from figures.ch08.spacing import COLOURS
from minidist.show.figures.subplots import subplot


def draw(exponents: Sequence[int], unscaled: Mapping[str, Sequence[float]], scaled: Mapping[str, Sequence[float]]):
    """Return a matplotlib Figure: solid lines without a scale, dashed ones with one.

    Args:
        exponents: standard deviations of the numbers, as powers of two.
        unscaled, scaled: format -> relative error at each standard deviation.
    """
    figure, axes = subplot(11, 3)
    for name, errors in unscaled.items():
        axes.plot(exponents, errors, color=COLOURS[name], label=name)
    for name, errors in scaled.items():
        axes.plot(exponents, errors, "--", color=COLOURS[name], linewidth=1.5, label=f"{name}, scaled")
    axes.set(yscale="log", xlabel="standard deviation: 2^x", ylabel="relative error")
    figure.legend(loc="outside lower center", ncols=6, frameon=False)
    return figure
