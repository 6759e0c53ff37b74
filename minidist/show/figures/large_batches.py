"""A large-batch experiment in two pictures: steps against samples to one loss, and steps against learning rate."""

import numpy as np

from minidist.plan.batches import BatchExperiment
from minidist.show.figures.subplots import subplots
from minidist.show.palette import SERIES

MARKERS = "osD^vP"
INK = "#606060"


def draw(experiment: BatchExperiment):
    """Return a matplotlib Figure of two panels.

    Left: steps over samples at each batch's best rate, for every seed, and the fitted hyperbolas; their least steps
    and samples are dotted. Right: steps of the first optimizer over the learning rate, a curve for each batch.
    """
    from matplotlib.ticker import LogLocator, NullFormatter

    figure, (left, right) = subplots(11, 4.6, 1, 2)
    for optimizer, colour, marker in zip(experiment.optimizers, SERIES, MARKERS, strict=False):
        _tradeoff(left, experiment, optimizer, colour, marker)
    for batch in experiment.batches:
        _label(left, experiment, batch)
    left.set(xscale="log", yscale="log", xlabel="samples", ylabel="steps")
    left.set_title(f"to a held-out loss of {experiment.target:g}, at the best rate", loc="left", fontsize=11)
    left.legend(frameon=False, fontsize=9)
    for batch, colour, marker in zip(experiment.batches, SERIES[2:], MARKERS, strict=False):
        _rates(right, experiment, batch, colour, marker)
    right.set(xscale="log", yscale="log", xlabel="learning rate", ylabel="steps")
    right.set_title(f"{experiment.optimizers[0]}: the rate that a batch wants", loc="left", fontsize=11)
    right.legend(frameon=False, fontsize=9)
    for axes in (left, right):
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axis.set_major_formatter("{x:,g}")
            axis.set_minor_formatter(NullFormatter())
    return figure


def _tradeoff(axes, experiment: BatchExperiment, optimizer: str, colour: str, marker: str) -> None:
    fitted = experiment.tradeoff(optimizer)
    batches = np.geomspace(min(experiment.batches) / 2, max(experiment.batches) * 2)
    steps = np.array([fitted.steps(batch) for batch in batches])
    label = f"{optimizer}: critical batch {fitted.critical_batch:.0f}"
    axes.plot(batches * steps, steps, "-", color=colour, linewidth=1.2, label=label)
    axes.axhline(fitted.least_steps, linestyle=":", color=colour, linewidth=1)
    axes.axvline(fitted.least_samples, linestyle=":", color=colour, linewidth=1)
    for batch in experiment.batches:
        found = np.array(experiment.steps(optimizer, batch, experiment.best_rate(optimizer, batch)))
        axes.plot(batch * found, found, marker, color=colour, markersize=6)


def _label(axes, experiment: BatchExperiment, batch: int) -> None:
    """Write a batch's name above the most steps that it took."""
    rates = [(optimizer, experiment.best_rate(optimizer, batch)) for optimizer in experiment.optimizers]
    most = max(steps for optimizer, rate in rates for steps in experiment.steps(optimizer, batch, rate) if steps)
    offset = {"xytext": (9, 9), "textcoords": "offset points", "ha": "center", "va": "bottom"}
    axes.annotate(f"batch {batch}", (batch * most, most), color=INK, fontsize=9, **offset)


def _rates(axes, experiment: BatchExperiment, batch: int, colour: str, marker: str) -> None:
    optimizer, seed = experiment.optimizers[0], experiment.seeds[0]
    tried = sorted(
        (run.rate, run.steps)
        for run in experiment.runs
        if (run.optimizer, run.batch, run.seed) == (optimizer, batch, seed) and run.steps is not None
    )
    axes.plot(
        *zip(*tried, strict=True), f"-{marker}", color=colour, markersize=5, linewidth=1.2, label=f"batch {batch}"
    )
