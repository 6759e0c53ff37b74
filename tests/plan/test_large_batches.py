"""Large batches: the tradeoff's own properties, the rules for the rate, and the measured experiment with its page."""

import importlib
from itertools import product
from pathlib import Path

import pytest

from minidist.plan.batches import (
    BatchExperiment,
    Noise,
    Ramped,
    Run,
    Tradeoff,
    fit_tradeoff,
    linear_rate,
    samples_to_loss,
    square_root_rate,
    steps_to_loss,
)

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "benchmarks.md").read_text(encoding="utf-8")
CRITICAL, LEAST = 700.0, 1000.0
LAWS = {"adamw": Tradeoff(100.0, 3000.0), "lamb": Tradeoff(120.0, 2400.0)}


def test_steps_and_samples_lie_on_the_hyperbola_of_mccandlish_and_rates_follow_their_rules():
    for batch in (1, 37, 700, 1e6):
        steps, samples = steps_to_loss(batch, CRITICAL, LEAST), samples_to_loss(batch, CRITICAL, LEAST)
        assert samples == pytest.approx(batch * steps)
        assert (steps / LEAST - 1) * (samples / (CRITICAL * LEAST) - 1) == pytest.approx(1)
    assert linear_rate(0.1, 256, 8192) == pytest.approx(3.2)  # Goyal et al.: ImageNet in one hour
    assert square_root_rate(1e-3, 256, 1024) == pytest.approx(2e-3)


def test_a_fit_finds_the_hyperbola_and_counts_relative_errors():
    exact = Tradeoff(LEAST, CRITICAL * LEAST)
    found = fit_tradeoff({batch: exact.steps(batch) for batch in (8, 64, 512, 4096)})
    assert found.least_steps == pytest.approx(LEAST) and found.critical_batch == pytest.approx(CRITICAL)
    steps = {8: 900.0, 16: 470.0, 32: 300.0, 64: 190.0, 128: 160.0}
    found = fit_tradeoff(steps)

    def error(*factors: float) -> float:
        law = Tradeoff(found.least_steps * factors[0], found.least_samples * factors[1])
        return sum((law.steps(batch) / measured - 1) ** 2 for batch, measured in steps.items())

    assert all(error(1, 1) <= error(*factors) for factors in product((0.99, 1, 1.01), repeat=2))


def test_an_experiment_is_read_back_and_summed_up(tmp_path):
    """The first seed tries four rates, of which the square-root rule's is best; the second takes that one."""
    runs = []
    for (optimizer, law), batch in product(LAWS.items(), (8, 32, 128)):
        best, steps = square_root_rate(0.004, 8, batch), law.steps(batch)
        for rate, seed, share in ((best / 2, 0, 1.5), (best, 0, 0.9), (best, 1, 1.1), (2 * best, 0, None)):
            runs.append(Run(optimizer, batch, rate, seed, share and share * steps))
    quarters = product((0, 1), range(4))
    noise = tuple(Noise(seed, quarter, 3.0 - quarter, 10.0 * (quarter + seed)) for seed, quarter in quarters)
    ramps = (Ramped(0, "", 50, 2.5), Ramped(0, "8,8,1000", 80, 2.4), Ramped(1, "", 50, 2.6))
    made = BatchExperiment(2.3, 8, 32, 6400, 128, tuple(runs), noise, ramps)
    made.write(tmp_path / "experiment.json")
    assert BatchExperiment.read(tmp_path / "experiment.json") == made
    assert [made.best_rate("adamw", batch) for batch in (8, 32, 128)] == [0.004, 0.008, 0.016]
    assert made.rate_by(square_root_rate, "lamb", 32) == 0.008 and made.rate_by(linear_rate, "lamb", 32) == 0.016
    assert made.mean_steps("adamw", 8, 0.004) == pytest.approx(LAWS["adamw"].steps(8))
    assert made.mean_steps("adamw", 8, 0.008) is made.mean_steps("adamw", 8, 0.5) is None  # given up; never run
    assert made.first_steps("adamw", 8, 0.004) == pytest.approx(0.9 * LAWS["adamw"].steps(8))
    for optimizer, law in LAWS.items():
        assert made.tradeoff(optimizer).critical_batch == pytest.approx(law.critical_batch)
        assert [one.least_steps / law.least_steps for one in made.tradeoffs(optimizer)] == pytest.approx([0.9, 1.1])
    assert made.noise_scale(2) == [20.0, 30.0] and [one.loss for one in made.ramped("")] == [2.5, 2.6]


def test_the_page_shows_what_was_measured(monkeypatch):
    """The page has the tables that benchmarks/large_batches.py makes of the measurements."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark, found = importlib.import_module("large_batches"), BatchExperiment.read()
    for cells in zip(*(column.cells for column in benchmark.batches_table(found).columns), strict=True):
        (row, *_) = [line for line in PAGE.splitlines() if line.startswith(f"| {' | '.join(cells[:4])} (")]
        assert row.endswith(f" | {' | '.join(cells[4:])} |")
    for optimizer, batch in product(found.optimizers, found.batches):  # every batch has every seed at its best rate
        assert len(found.steps(optimizer, batch, found.best_rate(optimizer, batch))) == len(found.seeds)
    losses = {0: 5.5, 100: 3.0, 400: 2.0, 500: 2.2}
    assert benchmark.crossing(losses, 2.5) == pytest.approx(200)  # half of the way, over the logarithm of steps
    assert benchmark.crossing(losses, 1.9) is None
    assert benchmark.crossing({0: 5.5, 32: 2.0}, 2.5) == 32  # nothing is known of the steps before
