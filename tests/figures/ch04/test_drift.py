"""How far two runs have diverged."""

import numpy as np
import pytest
from figures.ch04 import drift

from minidist.show.palette import on_paper


def test_bits_are_compared_and_not_values():
    one = np.array([1.0, 0.0, np.nan, 5.0], np.float32)
    other = np.array([1.0, -0.0, np.nan, 5.0000005], np.float32)
    assert drift.share_different(one, other) == 0.5
    assert drift.share_different(one, one) == 0


def test_distance_is_relative():
    assert drift.relative_distance(np.array([3.0, 4.0]), np.array([3.0, 4.5])) == pytest.approx(0.1)


def test_a_run_that_never_diverges_is_at_zero():
    reference = [np.array([1.0, 2.0]), np.array([3.0, 4.0])]
    other = [reference[0], np.array([3.0, 4.5])]
    figure = drift.draw({"same": (reference, reference), "other": (reference, other)})
    shares = [line.get_ydata().tolist() for line in figure.axes[0].lines]
    assert shares == [[0, 0], [0, 50]]
    assert figure.axes[1].lines[1].get_ydata().tolist() == pytest.approx([0, 0.1])
    assert figure.axes[0].lines[0].get_color() == on_paper("result") != figure.axes[0].lines[1].get_color()
