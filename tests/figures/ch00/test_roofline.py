"""The roof: a slope as steep as the bandwidth, up to the peak."""

import pytest
from figures.ch00 import roofline

PEAK, BANDWIDTH = 1000.0, 10.0  # ridge at 100


@pytest.mark.parametrize(
    "intensity, expected", [(1, 10), (50, 500), (100, 1000), (101, 1000), (1e6, 1000), (0.01, 0.1)]
)
def test_height(intensity, expected):
    assert roofline.height(intensity, PEAK, BANDWIDTH) == pytest.approx(expected)


def test_the_picture_puts_unmeasured_work_on_the_roof_and_measured_work_where_it_was():
    series = {"computed": [("a", 1.0, None), ("b", 1000.0, None)], "measured": [("c", 10.0, 42.0)]}
    axes = roofline.draw(PEAK, BANDWIDTH, series, "a title").axes[0]
    dots = {line.get_label(): line.get_xydata().tolist() for line in axes.lines}
    assert dots["computed"] == [[1, pytest.approx(10)], [1000, pytest.approx(1000)]]
    assert dots["measured"] == [[10, 42]]
    assert "ridge: 100 FLOPs per byte" in [text.get_text() for text in axes.texts]
