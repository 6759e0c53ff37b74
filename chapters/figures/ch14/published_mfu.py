"""The MFU of published runs over the number of their GPUs, a colour for each chip."""

from collections.abc import Iterable
from typing import NamedTuple

from minidist.plan.published_runs import Comparison
from minidist.show.figures.subplots import subplot
from minidist.show.palette import SERIES

CHIPS = ("V100", "A100", "H100", "H200", "GB200", "B200")  # the others share one colour


class Dot(NamedTuple):
    """One run. mfu: a share of the peak."""

    chip: str
    gpus: int
    mfu: float


def dots_of(compared: Iterable[Comparison]) -> dict[str, Dot]:
    """Return the runs in 16 bits whose MFU is published, by name."""
    dots = {}
    for one in compared:
        for figure in one.figures:
            if figure.name == "mfu" and one.run.precision != "fp8":
                cluster = one.planned.cluster
                chip = next((chip for chip in CHIPS if cluster.accelerator.name.startswith(chip)), "others")
                dots[one.run.name] = Dot(chip, cluster.world_size, figure.published)
    return dots


def draw(dots: Iterable[Dot], named: dict[str, Dot]):
    """Return a matplotlib Figure: a dot for each run on a logarithmic axis, and the names of some."""
    figure, axes = subplot(10, 4)
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
    axes.legend(frameon=False, fontsize=9, loc="lower left", ncols=3)
    return figure
