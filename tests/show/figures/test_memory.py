"""Memory spread over devices: nothing is lost, and no device holds more than its capacity."""

import pytest

from minidist.show.figures import memory


def test_devices_are_filled_one_after_the_other():
    devices = memory.fill({"parameters": 50, "gradients": 60, "activations": 30}, 80)
    assert devices == [
        [("parameters", 0, 50), ("gradients", 50, 80)],
        [("gradients", 0, 30), ("activations", 30, 60)],
    ]


def test_seventy_billion_parameters_fill_fourteen_devices():
    buckets = {"parameters": 140.0, "gradients": 140.0, "master weights": 280.0, "exp_avg": 280.0, "exp_avg_sq": 280.0}
    devices = memory.fill(buckets, 80.0)
    assert len(devices) == 14
    assert all(pieces[-1][2] == pytest.approx(80) for pieces in devices)
    for name, amount in buckets.items():
        found = sum(high - low for pieces in devices for piece, low, high in pieces if piece == name)
        assert found == pytest.approx(amount)


def test_fractions_leave_no_sliver_on_a_device_of_its_own():
    assert len(memory.fill({str(i): 0.1 for i in range(10)}, 0.1)) == 10
    assert memory.fill({"nothing": 0.0}, 80) == []


def test_the_picture_has_a_bar_for_each_piece():
    axes = memory.draw({"parameters": 50, "gradients": 60}, 80, "a title").axes[0]
    heights = sorted(bar.get_height() for bar in axes.patches if bar.get_facecolor()[3] > 0 and bar.get_height() > 0)
    assert heights == [30, 30, 50]
