import numpy as np
import pytest
from figures.ch12 import step_times

COMPUTE = np.array([[1.0, 1.0, 1.0], [1.0, 3.0, 3.0], [0.5, 1.0, 1.0]])


def test_the_slow_rank_is_the_one_that_does_not_wait():
    assert step_times.waiting_share(COMPUTE) == pytest.approx([4 / 7, 0, 4.5 / 7])


def test_each_step_is_as_long_as_its_slowest_rank():
    figure = step_times.draw(COMPUTE, first=5)
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["step 5", "step 6", "step 7"]
    waiting, computing = axes.containers[0], axes.containers[1]  # of rank 0
    assert [bar.get_width() for bar in waiting] == [1, 3, 3] and [bar.get_width() for bar in computing] == [1, 1, 1]
    assert [bar.get_x() for bar in computing] == [0, 1, 4]
