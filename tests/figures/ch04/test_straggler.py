"""The slowest of N ranks."""

import numpy as np
import pytest
from figures.ch04 import straggler


def uniform(probability):
    return probability


@pytest.mark.parametrize("ranks", [1, 3, 99])
def test_the_mean_of_the_largest_of_n_uniform_numbers(ranks):
    times = straggler.slowest_of(uniform, ranks, 20_000, np.random.default_rng(0))
    assert times.mean() == pytest.approx(ranks / (ranks + 1), abs=0.01)


def test_it_has_the_distribution_of_a_maximum():
    rng = np.random.default_rng(1)
    fast = straggler.slowest_of(uniform, 5, 20_000, rng)
    slow = rng.random((20_000, 5)).max(axis=1)
    assert np.quantile(fast, [0.1, 0.5, 0.9]) == pytest.approx(np.quantile(slow, [0.1, 0.5, 0.9]), abs=0.02)


def test_the_picture_shows_the_means():
    figure = straggler.draw({"always 1": lambda u: np.ones_like(u)}, [1, 2, 4], 10, np.random.default_rng(0))
    assert figure.axes[0].lines[0].get_xydata().tolist() == [[1, 1], [2, 1], [4, 1]]
