"""What a format does to numbers of each magnitude, counted."""

import numpy as np
import pytest
from figures.ch08.magnitudes import draw, histogram, shares

from minidist.nn.precision.formats import E5M2, FLOAT16


def test_shares_of_known_numbers():
    values = np.array([0, 2.0**-26, -(2.0**-25), 2.0**-20, -1, 1, 65504, -70000], np.float32)
    found = shares(values, FLOAT16)
    assert found == pytest.approx({"lost": 2 / 7, "subnormal": 1 / 7, "fits": 3 / 7, "too large": 1 / 7})


@pytest.mark.parametrize("format", [FLOAT16, E5M2], ids=lambda f: f.name)
def test_shares_agree_with_rounding(format):
    values = np.random.default_rng(0).standard_normal(4000).astype(np.float32) * 2.0 ** np.linspace(-32, 14, 4000)
    values = values.astype(np.float32)
    values = values[np.abs(values) <= format.largest]
    assert shares(values, format)["lost"] == np.mean(format.round(values) == 0) > 0.1


def test_histogram_counts_powers_of_two():
    values = np.array([0, 1, 1.9, -2, 4, 1000], np.float32)
    assert histogram(values, 0, 3).tolist() == [2 / 5, 1 / 5, 2 / 5]
    (axes,) = draw({"some": values}, FLOAT16, 0, 3).axes
    assert [bar.get_height() for bar in axes.patches] == [40, 20, 40]
