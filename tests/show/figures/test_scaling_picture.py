"""The picture of a scaling experiment: every run is on it, beside the law that was fitted to some of them."""

import numpy as np
import pytest

from minidist.plan.scaling.experiment import Experiment, Run
from minidist.plan.scaling.laws import ScalingLaw
from minidist.show.figures.scaling import draw
from minidist.show.palette import on_paper

LAW = ScalingLaw("small", E=1.1, A=60.0, B=900.0, alpha=0.45, beta=0.5)


def runs(budget: float, off: float = 1.0) -> tuple[Run, ...]:
    sizes = [round(share * LAW.optimum(budget).parameters) for share in (0.4, 0.7, 1.0, 1.5, 2.5)]
    made = []
    for width, size in enumerate(sizes):
        tokens = round(budget / 6 / size)
        made.append(Run(budget, width, size, tokens, 6 * size * tokens, off * LAW.loss(size, tokens)))
    return tuple(made)


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return Experiment(1, runs(1e10) + runs(1e11), runs(1e12, off=1.02), text_tokens=1000)


def points_of(axes, marker: str) -> np.ndarray:
    return np.concatenate([line.get_xydata() for line in axes.get_lines() if line.get_marker() == marker])


def test_every_run_is_where_it_was_measured(experiment):
    left, right = draw(experiment).axes
    for marker, made in zip("osD", (runs(1e10), runs(1e11), runs(1e12, off=1.02)), strict=True):
        np.testing.assert_array_equal(points_of(left, marker), [(run.parameters, run.loss) for run in made])
        fitted = [experiment.fit.law.loss(run.parameters, run.tokens) for run in made]
        np.testing.assert_array_equal(
            points_of(right, marker), [(x, run.loss) for x, run in zip(fitted, made, strict=True)]
        )


def test_the_laws_minima_are_marked_and_only_the_prediction_is_dashed(experiment):
    left, _ = draw(experiment).axes
    best = [experiment.fit.law.optimum(budget) for budget in (1e10, 1e11, 1e12)]
    crosses = [line for line in left.get_lines() if line.get_marker() == "x"]
    assert {line.get_color() for line in crosses} == {on_paper("result")}
    np.testing.assert_array_equal(points_of(left, "x"), [(run.parameters, run.loss) for run in best])
    curves = [line for line in left.get_lines() if len(line.get_xdata()) > 5]
    assert [line.get_linestyle() for line in curves] == ["-", "-", "--"]
    for line, run in zip(curves, best, strict=True):
        assert line.get_ydata().min() == pytest.approx(run.loss, rel=1e-3)
    texts = [text.get_text() for text in left.get_legend().get_texts()]
    assert texts == ["1e+10 FLOPs", "1e+11 FLOPs", "1e+12 FLOPs, predicted"]


def test_bars_are_the_intervals_of_the_next_budget_alone(experiment):
    _, right = draw(experiment).axes
    bars = [line.get_xydata() for line in right.get_lines() if line.get_marker() == "None" and line.get_alpha()]
    assert len(bars) == len(experiment.next_runs)
    for bar, run in zip(bars, experiment.next_runs, strict=True):
        assert tuple(bar[:, 1]) == experiment.fit.predicted(run.parameters, run.tokens)
        assert bar[0, 0] == bar[1, 0] == experiment.fit.law.loss(run.parameters, run.tokens)
