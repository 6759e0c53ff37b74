"""A scaling experiment in two pictures: isoFLOP curves with their minima, and measured against fitted losses."""

from itertools import chain

import numpy as np

from minidist.plan.scaling.experiment import Experiment, Run, by_budget
from minidist.show.figures.subplots import subplots
from minidist.show.palette import RANKS, on_paper

MARKERS = "osD^vP"
INK = "#606060"


def draw(experiment: Experiment):
    """Return a matplotlib Figure of two panels.

    Left: the loss of each budget's runs over their parameters, the fitted law, and its minimum. The law of the next
    budget is dashed, since its runs are not part of the fit. Right: the same losses over the fitted ones; bars are the
    90 % intervals that were predicted for the next budget.
    """
    figure, (left, right) = subplots(11, 4.6, 1, 2, width_ratios=(3, 2))
    budgets = chain(by_budget(experiment.runs).values(), by_budget(experiment.next_runs).values())
    for runs, colour, marker in zip(budgets, RANKS, MARKERS, strict=False):
        is_next = runs[0] in experiment.next_runs
        _curve(left, experiment, runs, colour, marker, is_next)
        _against_fit(right, experiment, runs, colour, marker, is_next)
    left.set(xscale="log", xlabel="parameters N, with embeddings", ylabel="loss on held-out text, nats per byte")
    left.set_title("same FLOPs, other sizes", loc="left", fontsize=11)
    left.legend(frameon=False, fontsize=9, title="C = 6 N D", title_fontsize=9, alignment="left")
    ends = np.array([right.dataLim.x0, right.dataLim.x1])
    right.plot(ends, ends, color=INK, linewidth=1, zorder=0)
    right.set(xlabel="loss by the fitted law", ylabel="measured loss")
    right.set_title("measured against fitted", loc="left", fontsize=11)
    return figure


def _curve(axes, experiment: Experiment, runs: list[Run], colour: str, marker: str, is_next: bool) -> None:
    law, budget = experiment.fit.law, runs[0].budget
    best = law.optimum(budget)
    sizes = [run.parameters for run in runs]
    curve = np.geomspace(min(*sizes, best.parameters) / 1.15, max(*sizes, best.parameters) * 1.15)
    axes.plot(curve, law.loss(curve, budget / 6 / curve), "--" if is_next else "-", color=colour, linewidth=1.2)
    label = f"{budget:.2g} FLOPs" + ", predicted" * is_next
    axes.plot(sizes, [run.loss for run in runs], marker, color=colour, markersize=6, label=label)
    axes.plot(best.parameters, best.loss, "x", color=on_paper("result"), markersize=9, markeredgewidth=2, zorder=3)


def _against_fit(axes, experiment: Experiment, runs: list[Run], colour: str, marker: str, is_next: bool) -> None:
    fitted = [experiment.fit.law.loss(run.parameters, run.tokens) for run in runs]
    axes.plot(fitted, [run.loss for run in runs], marker, color=colour, markersize=6, zorder=2)
    if is_next:
        for run, loss in zip(runs, fitted, strict=True):
            interval = experiment.fit.predicted(run.parameters, run.tokens)
            axes.plot([loss, loss], interval, color=colour, alpha=0.35, linewidth=5, solid_capstyle="butt", zorder=1)
