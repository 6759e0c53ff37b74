import pytest
from figures.ch12 import save_interval

from minidist.plan.failures.goodput import daly_interval, goodput


def test_the_dot_is_at_the_bottom_of_its_valley():
    figure = save_interval.draw(11_124.0, (60,), {60: {600: 0.2, 1200: 0.1}})
    (axes,) = figure.axes
    valley = axes.lines[0].get_ydata()
    dot = next(line for line in axes.lines if line.get_marker() == "o")
    crosses = next(line for line in axes.lines if line.get_marker() == "x")
    best = daly_interval(11_124.0, 60)
    assert float(dot.get_xdata()[0]) == best / 60
    assert float(dot.get_ydata()[0]) == 1 - goodput(11_124.0, best, 60) == pytest.approx(min(valley), abs=1e-4)
    assert list(crosses.get_xdata()) == [10, 20] and list(crosses.get_ydata()) == [0.2, 0.1]
