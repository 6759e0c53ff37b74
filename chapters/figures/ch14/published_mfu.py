"""The MFU of published runs over the number of their GPUs, a colour for each chip."""

from collections.abc import Iterable
from typing import NamedTuple

from minidist.show.palette import SERIES


class Dot(NamedTuple):
    """One run. mfu: a share of the peak."""

    chip: str
    gpus: int
    mfu: float


def draw(dots: Iterable[Dot], named: dict[str, Dot]):
    """A matplotlib Figure: a dot for each run on a logarithmic axis, and the names of some."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    axes = figure.subplots()
    dots = list(dots)
    for place, chip in enumerate(dict.fromkeys(dot.chip for dot in dots)):
        mine = [dot for dot in dots if dot.chip == chip]
        axes.scatter(
            [dot.gpus for dot in mine],
            [100 * dot.mfu for dot in mine],
            s=26,
            alpha=0.75,
            color=SERIES[place],
            label=chip,
        )
    for name, dot in named.items():
        axes.annotate(name, (dot.gpus, 100 * dot.mfu), xytext=(8, 6), textcoords="offset points", fontsize=8.5)
    axes.set(xscale="log", xlabel="GPUs", ylabel="MFU, %", ylim=(0, 75))
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="lower left", ncols=3)
    return figure
