"""Histograms of distances in ulps."""

import numpy as np
import pytest
from figures import ulp_histogram


def test_far_distances_are_counted_at_the_ends():
    apart = np.array([-9, -2, -1, 0, 0, 0, 1, 1, 3, 70])
    assert ulp_histogram.shares(apart, 2).tolist() == [0.2, 0.1, 0.3, 0.2, 0.2]
    heights = [bar.get_height() for bar in ulp_histogram.draw({"some": apart}, most=2).axes[0].patches]
    assert heights == pytest.approx([20, 10, 30, 20, 20])


def test_unchanged_sums_are_labelled():
    figure = ulp_histogram.draw({"changed": np.array([0, 1]), "unchanged": np.zeros(4, np.int64)})
    notes = [axes.texts[0].get_text() for axes in figure.axes]
    assert notes == ["50 % of the sums\nhave different bits", "all bits the same"]
