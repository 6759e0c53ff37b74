"""The scale of the loss: what it does to the gradients, and how it changes during training."""

from collections.abc import Mapping, Sequence

import numpy as np

from figures.ch08.spacing import COLOURS
from minidist.show.figures.subplots import subplot, subplots
from minidist.show.palette import SERIES

PRECISIONS = {"fp16": COLOURS["float16"], "bf16": COLOURS["bfloat16"]}


def draw(errors: Mapping[str, Mapping[int, float]]):
    """Return a matplotlib Figure of the gradients' errors at several scales; an overflow is drawn as ∞.

    Args:
        errors: precision -> scale as a power of two -> relative error of the gradients, not finite after an overflow.
    """
    figure, axes = subplot(11, 3)
    for name, found in errors.items():
        powers, values = list(found), np.array(list(found.values()))
        axes.plot(powers, np.where(np.isfinite(values), values, np.nan), "o-", color=PRECISIONS[name], label=name)
        for power, value in found.items():
            if not np.isfinite(value):
                axes.text(power, 0.7, "∞", color=PRECISIONS[name], ha="center", fontsize=15)
    for power, name in ((0, "no scaling"), (16, "usual initial scale")):
        axes.axvline(power, color="#606060", linestyle=":", linewidth=1)
        axes.text(power + 0.3, 0.03, name, fontsize=9)
    axes.set(yscale="log", xlabel="loss scale: 2^x", ylabel="relative gradient error", xticks=list(errors["fp16"]))
    axes.legend(frameon=False, loc="lower left")
    return figure


def draw_history(losses: Sequence[float], scales: Sequence[float], overflows: Sequence[bool]):
    """Return a matplotlib Figure: the loss above, the scale of each step below, with a cross for each skipped step."""
    figure, (top, axes) = subplots(11, 3.8, 2, 1, sharex=True)
    top.plot(losses, color=PRECISIONS["fp16"])
    top.set_ylabel("loss")
    axes.step(range(len(scales)), np.log2(scales), where="mid", color="#444444")
    skipped = np.flatnonzero(overflows)
    axes.plot(skipped, np.log2(scales)[skipped], "X", color=SERIES[1], markersize=8, label="overflow: step skipped")
    axes.set(xlabel="step", ylabel="loss scale: 2^y")
    axes.legend(frameon=False)
    return figure
