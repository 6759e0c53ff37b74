"""The picture of the large-batch experiment has every run, the fits, and their limits."""

import numpy as np
import pytest

from minidist.plan.batches.experiment import BatchExperiment
from minidist.show.figures.large_batches import draw


@pytest.fixture(scope="module")
def measured() -> BatchExperiment:
    return BatchExperiment.read()


def points(axes, line_style: str = "None") -> set[tuple[float, float]]:
    found = [line.get_xydata() for line in axes.lines if line.get_linestyle() == line_style]
    return {tuple(point) for point in np.concatenate(found).tolist()}


def test_every_run_at_a_best_rate_is_a_point(measured):
    left, _ = draw(measured).axes
    best = {(o, b): measured.best_rate(o, b) for o in measured.optimizers for b in measured.batches}
    runs = [run for run in measured.runs if run.rate == best[run.optimizer, run.batch]]
    assert points(left) == {(run.samples, run.steps) for run in runs}
    words = {text.get_text() for text in left.texts}
    assert words == {f"batch {batch}" for batch in measured.batches}


def test_curves_are_the_fits_and_dotted_lines_their_limits(measured):
    left, _ = draw(measured).axes
    curves = [line.get_xydata() for line in left.lines if line.get_linestyle() == "-"]
    for optimizer, curve in zip(measured.optimizers, curves, strict=True):
        fitted = measured.tradeoff(optimizer)
        np.testing.assert_allclose((curve[:, 1] / fitted.least_steps - 1) * (curve[:, 0] / fitted.least_samples - 1), 1)
    dotted = [line for line in left.lines if line.get_linestyle() == ":"]
    assert len(dotted) == 2 * len(measured.optimizers)


def test_rates_are_those_of_one_seed_and_one_optimizer(measured):
    _, right = draw(measured).axes
    tried = [run for run in measured.runs if run.seed == measured.seeds[0] and run.optimizer == measured.optimizers[0]]
    assert points(right, "-") == {(run.rate, run.steps) for run in tried if run.steps is not None}
    assert [line.get_label() for line in right.lines] == [f"batch {batch}" for batch in measured.batches]
