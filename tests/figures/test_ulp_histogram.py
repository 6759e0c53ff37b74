"""Distances in ulps, counted."""

import numpy as np
import pytest
from figures import floats

from minidist.verify.comparison import ulps_between


def test_distances_are_signed_steps():
    one = np.array([1.0, -1.0, 0.0, -1e-45, 3.0], np.float32)
    other = np.array([np.nextafter(np.float32(1), np.float32(2)), -1.0, -0.0, 1e-45, 2.0], np.float32)
    assert floats.ulps_apart(one, other).tolist() == [1, 0, 0, 2, -(1 << 22)]
    assert floats.ulps_apart(other, one).tolist() == [-1, 0, 0, -2, 1 << 22]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_distances_agree_with_verify(dtype):
    one, other = np.random.default_rng(0).standard_normal((2, 50)).astype(dtype)
    expected = [ulps_between(a, b) for a, b in zip(one, other, strict=True)]
    assert np.abs(floats.ulps_apart(one, other)).tolist() == expected


def test_what_cannot_be_compared_is_refused():
    with pytest.raises(ValueError, match="float32"):
        floats.ulps_apart(np.zeros(3, np.float32), np.zeros(3))


def test_far_distances_are_counted_at_the_ends():
    apart = np.array([-9, -2, -1, 0, 0, 0, 1, 1, 3, 70])
    assert floats.count_ulps(apart, 2).tolist() == [0.2, 0.1, 0.3, 0.2, 0.2]
    heights = [bar.get_height() for bar in floats.draw({"some": apart}, most=2).axes[0].patches]
    assert heights == pytest.approx([20, 10, 30, 20, 20])


def test_unchanged_sums_are_said_to_be():
    figure = floats.draw({"changed": np.array([0, 1]), "unchanged": np.zeros(4, np.int64)})
    notes = [axes.texts[0].get_text() for axes in figure.axes]
    assert notes == ["50 % of the sums\nhave other bits", "every bit the same"]
