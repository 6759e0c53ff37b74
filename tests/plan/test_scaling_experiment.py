"""The measured scaling experiment: what was trained, what it says, and that the page says the same."""

import importlib.util
import re
from pathlib import Path

import numpy as np
import pytest

from minidist.cli import main as cli
from minidist.nn.data import default_text
from minidist.plan.scaling.experiment import Experiment, Run, by_budget
from minidist.plan.scaling.isoflop import power_law
from minidist.plan.scaling.laws import LAWS, ScalingLaw

ROOT = Path(__file__).parents[2]
LAW = ScalingLaw("small", E=1.1, A=60.0, B=900.0, alpha=0.45, beta=0.5)


def benchmark():
    spec = importlib.util.spec_from_file_location("scaling_benchmark", ROOT / "benchmarks" / "scaling.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def measured() -> Experiment:
    return Experiment.read()


# ── The measured runs ────────────────────────────────────────────────────────────────────────────────────────────────


def test_runs_keep_to_their_budgets(measured):
    """Within half a step; and a model's products take little more than 6 N D, never less."""
    for run in measured.runs + measured.next_runs:
        config, parameters = benchmark().config_of(run.width, run.budget, measured.layers)
        assert run.parameters == parameters and run.tokens == config.steps * config.tokens_per_step
        assert abs(run.training.flops - run.budget) <= 6 * parameters * config.tokens_per_step / 2
        assert 1 < run.flops / run.training.flops < 1.2


def test_every_budget_has_its_minimum_among_its_sizes(measured):
    assert len(measured.curves) == len(by_budget(measured.runs)) >= 3
    assert all(curve.is_inside for curve in measured.curves)
    for runs in by_budget(measured.runs).values():
        losses = [run.loss for run in runs]
        assert 0 < losses.index(min(losses)) < len(losses) - 1


def test_more_flops_give_less_loss(measured):
    lowest = [min(run.loss for run in runs) for runs in by_budget(measured.runs + measured.next_runs).values()]
    assert lowest == sorted(lowest, reverse=True)


@pytest.mark.long
def test_the_next_budget_is_larger_than_all_that_was_fitted(measured):
    assert {run.budget for run in measured.next_runs} == {benchmark().NEXT * max(run.budget for run in measured.runs)}
    best = measured.fit.law.optimum(measured.next_runs[0].budget).parameters
    assert benchmark().nearest_width(best, measured.layers) in {run.width for run in measured.next_runs}


# ── How it is made ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_no_line_but_empty_ones_occurs_twice():
    text = benchmark().each_line_once(default_text())
    lines = [line.strip() for line in text.split(b"\n") if line.strip()]
    assert len(set(lines)) == len(lines) and set(lines) == {
        line.strip() for line in default_text().split(b"\n") if line.strip()
    }
    assert benchmark().each_line_once(b"a\n\nb\n  a\n\nc") == b"a\n\nb\n\nc"


def test_an_experiment_comes_back_from_its_file(tmp_path):
    runs = tuple(
        Run(budget, width, 1000 * width, round(budget / 6000 / width), 7, LAW.loss(1000 * width, budget / 6000 / width))
        for budget in (1e10, 1e11, 1e12)
        for width in (4, 8, 16, 32)
    )
    found = Experiment(2, runs[:8], runs[8:], text_tokens=5)
    found.write(tmp_path / "experiment.json")
    assert Experiment.read(tmp_path / "experiment.json") == found
    law = found.fit.law
    np.testing.assert_allclose([law.E, law.alpha, law.beta], [LAW.E, LAW.alpha, LAW.beta], rtol=1e-3)  # whole tokens
    assert [curve.flops for curve in found.curves] == [1e10, 1e11] and found.best_size(1e10) > 0
    assert found.backtest() == Experiment(2, runs[:4], runs[4:8], text_tokens=5)


# ── The page ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def cells(row: str) -> list[str]:
    return [cell.strip().strip("*") for cell in row.strip("|").split("|")]


PAGE = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")


def interval(limits: tuple[float, float], digits: str = ".3f") -> str:
    return " to ".join(f"{limit:{digits}}" for limit in limits)


@pytest.mark.long
def test_the_page_shows_every_run(measured):
    expected = []
    for run in measured.runs + measured.next_runs:
        is_next = run in measured.next_runs
        expected.append(
            [
                f"{run.budget:.3g}",
                str(run.width),
                f"{run.parameters:,}",
                f"{run.tokens:,}",
                f"{run.tokens / measured.text_tokens:.1f}",
                f"{run.loss:.3f}",
                f"{measured.fit.law.loss(run.parameters, run.tokens):.3f}",
                interval(measured.fit.predicted(run.parameters, run.tokens)) if is_next else "",
            ]
        )
    assert [cells(row) for row in re.findall(r"^\| \d[\d.e+]* \| \d+ \|.*$", PAGE, re.M)] == expected


@pytest.mark.long
def test_the_page_shows_the_fitted_law(measured):
    for name in ("E", "A", "alpha", "B", "beta", "size_exponent"):
        limits = measured.fit.interval(lambda law, name=name: getattr(law, name))
        assert (
            f"| {name.replace('_', ' ')} | {getattr(measured.fit.law, name):.3g} | {interval(limits, '.3g')} |" in PAGE
        )


@pytest.mark.long
def test_the_page_shows_the_best_sizes(measured):
    next_curves = Experiment(measured.layers, measured.next_runs, (), measured.text_tokens).curves
    for curve in measured.curves + next_curves:
        best = measured.fit.law.optimum(curve.flops)
        limits = measured.fit.interval(lambda law, flops=curve.flops: law.optimum(flops).parameters)
        row = [curve.parameters, measured.best_size(curve.flops), best.parameters]
        numbers = " | ".join(f"{value:,.0f}" for value in row)
        ratio = f"{best.tokens_per_parameter:.0f}"
        assert f"| {curve.flops:.3g} | {numbers} | {interval(limits, ',.0f')} | {ratio} |" in PAGE


@pytest.mark.long
def test_what_the_page_says_of_the_prediction_is_so(measured):
    smallest, predicted, largest = measured.next_runs
    assert f"{measured.fit.law.optimum(predicted.budget).parameters:,.0f} parameters" in PAGE
    assert predicted.loss < min(smallest.loss, largest.loss)
    limits = [measured.fit.predicted(run.parameters, run.tokens) for run in measured.next_runs]
    assert limits[1][0] < predicted.loss < limits[1][1] and limits[2][0] < largest.loss < limits[2][1]
    assert limits[0][0] - 0.01 < smallest.loss < limits[0][0]
    backtest = measured.backtest()
    lowest = min(backtest.next_runs, key=lambda run: run.loss)
    said = interval(backtest.fit.predicted(lowest.parameters, lowest.tokens))
    assert f"predicts {said} for that budget's width {lowest.width}, where {lowest.loss:.3f} was" in " ".join(
        PAGE.split()
    )
    without_e = power_law({curve.flops: curve.lowest for curve in measured.curves})(predicted.budget)
    assert f"gives {without_e:.3f}" in PAGE and without_e < predicted.loss


def test_the_page_shows_published_laws_and_over_trained_models(capsys):
    assert cli.main(["scaling", "--flops", "5.76e23"]) == 0
    table = [line.split("│")[1:-1] for line in capsys.readouterr().out.splitlines() if "│" in line]
    assert len(table) == 1 + len(LAWS)
    for name, *numbers in table:
        assert f"| `{name.strip()}` | " + " | ".join(number.strip() for number in numbers) + " |" in PAGE
    rows = re.findall(r"^\| [A-Z][^|]* \| (\S+) B \| (\S+) ([BT]) \| (\S+) \| (.*) \|$", PAGE, re.M)
    assert len(rows) == 6
    for parameters, tokens, unit, times, rest in rows:
        flags = ["--params", f"{parameters}e9", "--tokens", f"{tokens}e{12 if unit == 'T' else 9}"]
        assert cli.main(["scaling", *flags]) == 0
        table = [line.split("│") for line in capsys.readouterr().out.splitlines() if "│" in line]
        column = [line[-2].strip() for line in table]  # the last law, besiroglu
        assert [times, *cells(rest)] == column[1:]
