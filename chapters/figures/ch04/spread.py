"""Figure of how far apart the samples' gradients of one parameter are: the largest over the smallest, in bits."""

import numpy as np

from minidist.show.figures.subplots import subplot


def ratios(each: np.ndarray) -> np.ndarray:
    """Return log2(largest / smallest) of each parameter's gradients, zeros left out: (parameters,).

    Args:
        each: gradient of every sample, (samples, parameters).
    """
    sizes = np.abs(each[:, each.any(axis=0)])
    return np.log2(sizes.max(axis=0) / np.where(sizes == 0, np.inf, sizes).min(axis=0))


def draw(bits: np.ndarray, headroom: int):
    """Return a matplotlib Figure: a histogram of the ratios, and a line where a float64 sum may round.

    Args:
        bits: ratio of each parameter, in bits.
        headroom: largest ratio at which the sum is exact, in bits.
    """
    figure, axes = subplot(11, 2.6)
    axes.hist(bits, bins=np.arange(0, 36, 0.5), color="#0072B2")
    axes.axvline(headroom, color="#D55E00", linewidth=2)
    axes.text(headroom + 0.3, axes.get_ylim()[1] * 0.8, "beyond: float64 may round", color="#D55E00")
    axes.set_title("largest / smallest of the 8 samples' gradients, for every parameter", loc="left", fontsize=11)
    axes.set_xlabel("ratio in bits (10 means 1,024)")
    return figure
