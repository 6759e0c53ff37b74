"""Measured shares of the peak: the curves, and which chip has which."""

import pytest

from minidist.plan.cluster.efficiency import NEAREST, PERFECT, Efficiency, efficiency_of, interpolate, measured
from minidist.plan.cluster.hardware import load


def test_a_curve_is_straight_over_the_logarithm():
    curve = [[10.0, 0.2], [1000.0, 0.6]]
    assert interpolate(curve, 10) == 0.2 and interpolate(curve, 1000) == 0.6
    assert interpolate(curve, 100) == pytest.approx(0.4)  # half way between 10 and 1000
    assert interpolate(curve, 1e9) == 0.6
    assert interpolate(curve, 5) == pytest.approx(0.1)  # half the work takes as long
    assert interpolate([[1.0, 0.7]], 1e-9) == 0.7


def test_every_curve_is_a_share_and_has_a_source():
    for name, found in measured().items():
        shares = [share for curve in (found.products, found.inside) for _, share in curve]
        assert all(0 < share <= 1 for share in (*shares, found.memory, found.flash_forward, found.between)), name
        assert found.source and found.flash_backward <= found.flash_forward
        assert load().accelerators[name]


def test_azure_s_figures_are_the_curves_of_the_a100():
    """Achieved TFLOP/s and GB/s of the published benchmark, over the data sheet's peaks."""
    found = measured()["a100"]
    for size, tflops in ((1024, 119.4), (2048, 221.8), (4096, 228.0), (8192, 253.7), (16384, 256.5)):
        assert found.of_product(2 * size**3) == pytest.approx(tflops / 312, abs=0.01)
    for megabytes, bandwidth in ((1, 36.2), (134, 174.2), (8000, 231.6)):
        assert found.of_collective(megabytes * 1e6) == pytest.approx(bandwidth / 300, abs=0.01)


def test_a_chip_without_measurements_has_those_of_the_nearest():
    chips = load().accelerators
    for name, nearest in NEAREST.items():
        assert efficiency_of(chips[name]) is measured()[nearest]
    assert efficiency_of(chips["h100"]) is measured()["h100"]
    assert PERFECT.of_product(1) == PERFECT.of_collective(1) == 1


@pytest.mark.parametrize("curve", [[], [[1.0]], [[2.0, 0.5], [1.0, 0.6]], [[1.0, 0.0]]])
def test_curves_that_cannot_be(curve):
    with pytest.raises(ValueError, match="a curve has pairs of positive numbers in ascending order"):
        Efficiency("flash", curve, 1, 1, 1, [[1.0, 1.0]], 1, "")
    with pytest.raises(ValueError, match="attention must be one of standard, flash"):
        Efficiency("fast", [[1.0, 1.0]], 1, 1, 1, [[1.0, 1.0]], 1, "")
