"""Large batches: the tradeoff's own properties, and the rules for the rate."""

import numpy as np
import pytest

from minidist.plan.batches.tradeoff import (
    Tradeoff,
    best_rate,
    fit_tradeoff,
    linear_rate,
    samples_to_loss,
    speedup,
    square_root_rate,
    steps_to_loss,
)

CRITICAL, LEAST = 700.0, 1000.0


@pytest.mark.parametrize("batch", [1, 37, 700, 1e6])
def test_steps_and_samples_lie_on_the_hyperbola(batch):
    steps, samples = steps_to_loss(batch, CRITICAL, LEAST), samples_to_loss(batch, CRITICAL, LEAST)
    assert samples == pytest.approx(batch * steps)
    assert (steps / LEAST - 1) * (samples / (CRITICAL * LEAST) - 1) == pytest.approx(1)


def test_the_two_ends_and_the_middle():
    assert steps_to_loss(1e12, CRITICAL, LEAST) == pytest.approx(LEAST)
    assert samples_to_loss(1e-9, CRITICAL, LEAST) == pytest.approx(CRITICAL * LEAST)
    assert steps_to_loss(CRITICAL, CRITICAL, LEAST) == 2 * LEAST
    assert speedup(2, 1, 1e9) == pytest.approx(2) and speedup(2e9, 1e9, 1) == pytest.approx(1)


def test_rules_of_the_rate():
    assert linear_rate(0.1, 256, 8192) == pytest.approx(3.2)  # Goyal et al.: ImageNet in one hour
    assert square_root_rate(1e-3, 256, 1024) == pytest.approx(2e-3)
    batches = np.array([1.0, 2.0])
    small = [best_rate(1.0, batch, 1e6) for batch in batches]
    large = [best_rate(1.0, batch, 1e-6) for batch in batches]
    assert small[1] / small[0] == pytest.approx(2, rel=1e-5) and large[1] / large[0] == pytest.approx(1)


@pytest.mark.parametrize("bad", [0, -1, float("nan")])
def test_sizes_that_cannot_be(bad):
    with pytest.raises(ValueError, match="batch must be above 0"):
        steps_to_loss(bad, CRITICAL, LEAST)
    with pytest.raises(ValueError, match="rate must be above 0"):
        linear_rate(bad, 1, 2)


def test_a_fit_finds_the_hyperbola_that_steps_come_from():
    exact = Tradeoff(LEAST, CRITICAL * LEAST)
    found = fit_tradeoff({batch: exact.steps(batch) for batch in (8, 64, 512, 4096)})
    assert found.least_steps == pytest.approx(LEAST) and found.critical_batch == pytest.approx(CRITICAL)


def test_a_fit_counts_relative_errors():
    """No constants nearby bring the sum of squared relative errors lower."""
    steps = {8: 900.0, 16: 470.0, 32: 300.0, 64: 190.0, 128: 160.0}
    found = fit_tradeoff(steps)

    def error(law: Tradeoff) -> float:
        return sum((law.steps(batch) / measured - 1) ** 2 for batch, measured in steps.items())

    for least_steps in (0.99, 1, 1.01):
        for least_samples in (0.99, 1, 1.01):
            other = Tradeoff(found.least_steps * least_steps, found.least_samples * least_samples)
            assert error(found) <= error(other)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ({8: 100.0}, "measure at least two batch sizes, not 1"),
        ({8: 100.0, 16: 100.0, 32: 120.0}, "steps do not fall as the batch grows"),
        ({8: 100.0, 16: 30.0}, "steps fall faster than the batch grows"),
        ({8: 100.0, 16: 0.0}, "steps must be above 0"),
        ({-8: 100.0, 16: 50.0}, "batch must be above 0"),
    ],
)
def test_steps_that_no_tradeoff_has(steps, message):
    with pytest.raises(ValueError, match=message):
        fit_tradeoff(steps)
