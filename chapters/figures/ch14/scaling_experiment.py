"""A scaling experiment: isoFLOP curves with their minima, and what was predicted for a larger budget."""

import numpy as np

from minidist.plan.scaling.experiment import Experiment, by_budget
from minidist.show.figures.subplots import subplots
from minidist.show.palette import PAPER, SERIES


def draw(experiment: Experiment):
    """Return a matplotlib Figure: runs and parabolas of each budget; the runs that were predicted, and what came."""
    figure, (left, right) = subplots(11, 4, 1, 2, width_ratios=(3, 2))
    for place, (curve, (budget, runs)) in enumerate(
        zip(experiment.curves, by_budget(experiment.runs).items(), strict=True)
    ):
        sizes = np.geomspace(runs[0].parameters, runs[-1].parameters, 60)
        left.plot(sizes, curve.loss(sizes), color=SERIES[place], lw=1.2)
        left.scatter(
            [run.parameters for run in runs],
            [run.loss for run in runs],
            s=28,
            color=SERIES[place],
            label=f"{budget:.2g} FLOPs",
        )
        left.plot(curve.parameters, curve.lowest, marker="*", ms=13, color=SERIES[place], mec=PAPER["ink"])
    left.set(xscale="log", xlabel="parameters", ylabel="loss, nats per byte")
    left.set_title("trained to fit the law; stars: the best size of each budget", fontsize=10)
    left.legend(frameon=False, fontsize=9)
    for run in experiment.next_runs:
        low, high = experiment.fit.predicted(run.parameters, run.tokens)
        right.plot([run.parameters] * 2, [low, high], color=PAPER["faint"], lw=9, solid_capstyle="butt")
        right.plot(run.parameters, run.loss, "o", color=PAPER["wrong"])
    right.plot([], [], color=PAPER["faint"], lw=9, label="predicted, 90 %")
    right.plot([], [], "o", color=PAPER["wrong"], label="measured afterwards")
    right.set(xscale="log", xlabel="parameters")
    right.set_title(f"three times the budget: {experiment.next_runs[0].budget:.2g} FLOPs", fontsize=10)
    right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        axes.tick_params(which="both", labelsize=8.5)
    return figure
