"""The measured large-batch experiment: what a file says comes back, and what runs say together."""

import importlib
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from minidist.plan.batches.experiment import BatchExperiment, Noise, Ramped, Run
from minidist.plan.batches.tradeoff import Tradeoff, linear_rate, square_root_rate

LAWS = {"adamw": Tradeoff(100.0, 3000.0), "lamb": Tradeoff(120.0, 2400.0)}
BATCHES = (8, 32, 128)


def runs_of(optimizer: str, batch: int) -> list[Run]:
    """The first seed tries three rates, of which the square-root rule's is best; the second takes that one."""
    best = square_root_rate(0.004, 8, batch)
    steps = LAWS[optimizer].steps(batch)
    tried = [
        Run(optimizer, batch, best / 2, 0, 1.5 * steps),
        Run(optimizer, batch, best, 0, 0.9 * steps),
        Run(optimizer, batch, best, 1, 1.1 * steps),
    ]
    return [*tried, Run(optimizer, batch, 2 * best, 0, None)]


@pytest.fixture
def made() -> BatchExperiment:
    runs = tuple(run for optimizer in LAWS for batch in BATCHES for run in runs_of(optimizer, batch))
    noise = tuple(
        Noise(seed, quarter, 3.0 - quarter, 10.0 * (quarter + seed)) for seed in (0, 1) for quarter in range(4)
    )
    ramps = (Ramped(0, "", 50, 2.5), Ramped(0, "8,8,1000", 80, 2.4), Ramped(1, "", 50, 2.6))
    return BatchExperiment(2.3, 8, 32, 6400, 128, runs, noise, ramps)


def test_it_comes_back_from_its_file(made, tmp_path):
    made.write(tmp_path / "experiment.json")
    assert BatchExperiment.read(tmp_path / "experiment.json") == made


def test_the_best_rate_is_that_of_the_fewest_steps_and_rules_scale_it(made):
    assert [made.best_rate("adamw", batch) for batch in BATCHES] == [0.004, 0.008, 0.016]
    assert made.rate_by(square_root_rate, "lamb", 32) == 0.008 and made.rate_by(linear_rate, "lamb", 32) == 0.016


def test_steps_are_means_over_seeds_and_none_where_a_run_was_given_up(made):
    assert made.mean_steps("adamw", 8, 0.004) == pytest.approx(LAWS["adamw"].steps(8))
    assert made.mean_steps("adamw", 8, 0.008) is None
    assert made.mean_steps("adamw", 8, 0.5) is None  # never run
    assert made.first_steps("adamw", 8, 0.004) == pytest.approx(0.9 * LAWS["adamw"].steps(8))


def test_the_fit_is_that_of_the_runs_at_their_best_rates(made):
    for optimizer, law in LAWS.items():
        fitted = made.tradeoff(optimizer)
        assert fitted.least_steps == pytest.approx(law.least_steps)
        assert fitted.critical_batch == pytest.approx(law.critical_batch)
        assert [one.least_steps / law.least_steps for one in made.tradeoffs(optimizer)] == pytest.approx([0.9, 1.1])


def test_an_experiment_in_which_no_rate_reached_the_target_says_so(made):
    given_up = tuple(replace(run, steps=None) if run.batch == 32 else run for run in made.runs)
    with pytest.raises(ValueError, match=r"no rate tried reached 2\.3 with adamw and batch 32: try others"):
        replace(made, runs=given_up).tradeoff("adamw")


def test_noise_and_ramps_are_found_by_quarter_and_by_ramp(made):
    assert made.noise_scale(2) == [20.0, 30.0]
    assert [one.loss for one in made.ramped("")] == [2.5, 2.6] and made.ramped("8,8,1000")[0].steps == 80


# ── How it is made ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def benchmark(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    return importlib.import_module("large_batches")


def test_the_target_is_reached_between_two_looks(benchmark):
    losses = {0: 5.5, 100: 3.0, 400: 2.0, 500: 2.2}
    assert benchmark.crossing(losses, 2.5) == pytest.approx(200)  # half of the way, over the logarithm of steps
    assert benchmark.crossing(losses, 1.9) is None
    assert benchmark.crossing({0: 5.5, 32: 2.0}, 2.5) == 32  # nothing is known of the steps before


def test_the_same_jobs_are_run_once_whatever_their_patience(benchmark):
    assert len({benchmark.Job("adamw", 8, 0.1, 0, 100.0), benchmark.Job("adamw", 8, 0.1, 0)}) == 1


# ── The measured experiment, and the page ────────────────────────────────────────────────────────────────────────────

PAGE = (Path(__file__).parents[2] / "docs" / "benchmarks.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def measured() -> BatchExperiment:
    return BatchExperiment.read()


def steps_in_words(steps: float | None) -> str:
    return "given up" if steps is None else f"{steps:.0f}"


def with_range(values: list[float], middle: float, digits: str = ",.0f") -> str:
    return f"{middle:{digits}} ({min(values):{digits}} to {max(values):{digits}})"


def rows_of_batches(found: BatchExperiment) -> list[str]:
    rows = []
    for optimizer in found.optimizers:
        fitted = found.tradeoff(optimizer)
        for batch, mean in found.best_steps(optimizer).items():
            best = found.best_rate(optimizer, batch)
            seeds = found.steps(optimizer, batch, best)
            cells = [optimizer, str(batch), f"{best:.2g}", with_range(seeds, mean), f"{batch * mean:,.0f}"]
            cells += [f"{fitted.steps(batch):.0f}", steps_in_words(found.first_steps(optimizer, batch, best))]
            for rule in (linear_rate, square_root_rate):
                rate = found.rate_by(rule, optimizer, batch)
                cells.append(f"{steps_in_words(found.first_steps(optimizer, batch, rate))} ({rate:.2g})")
            rows.append("| " + " | ".join(cells) + " |")
    return rows


def rows_of_constants(found: BatchExperiment) -> list[str]:
    rows = []
    for name, words in (
        ("least_steps", "S_min, steps"),
        ("least_samples", "E_min, samples"),
        ("critical_batch", "critical batch size, samples"),
    ):
        cells = [
            with_range(
                [getattr(one, name) for one in found.tradeoffs(optimizer)], getattr(found.tradeoff(optimizer), name)
            )
            for optimizer in found.optimizers
        ]
        rows.append("| " + " | ".join([words, *cells]) + " |")
    return rows


def rows_of_noise(found: BatchExperiment) -> list[str]:
    rows = []
    for quarter in range(4):
        loss = fmean(one.loss for one in found.noise if one.quarter == quarter)
        scales = found.noise_scale(quarter)
        rows.append(f"| {quarter + 1} | {loss:.2f} | {with_range(scales, fmean(scales))} |")
    return rows


def rows_of_ramps(found: BatchExperiment) -> list[str]:
    rows = []
    for ramp in dict.fromkeys(one.ramp for one in found.ramps):
        runs = found.ramped(ramp)
        losses = [one.loss for one in runs]
        words = f"`--rampup-batch-size {ramp}`" if ramp else f"batch {found.ramp_batch}"
        rows.append(f"| {words} | {runs[0].steps} | {with_range(losses, fmean(losses), '.3f')} |")
    return rows


@pytest.mark.parametrize("rows", [rows_of_batches, rows_of_constants, rows_of_noise, rows_of_ramps])
def test_the_page_shows_what_was_measured(measured, rows):
    assert "\n".join(rows(measured)) in PAGE


def test_every_batch_has_every_seed_at_its_best_rate(measured):
    for optimizer in measured.optimizers:
        for batch in measured.batches:
            assert len(measured.steps(optimizer, batch, measured.best_rate(optimizer, batch))) == len(measured.seeds)
