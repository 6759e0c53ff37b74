"""How many micro-batches are in flight on a rank over time."""

import pytest
from figures.ch07.in_flight import draw, over_time

from minidist.parallel.tools.schedule_check import in_flight, timeline
from minidist.parallel.tools.schedules import schedule


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "zb-h1"])
def test_the_maximum_is_what_the_checker_counts(name):
    planned = schedule(name, 4, 8)
    for actions, slots in zip(planned, timeline(planned), strict=True):
        levels = over_time(slots)
        assert max(count for _, count in levels) == in_flight(actions) and levels[-1][1] == 0


def test_a_line_for_each_rank():
    figure = draw({name: timeline(schedule(name, 3, 4)) for name in ("gpipe", "1f1b")})
    assert [len(axes.lines) for axes in figure.axes] == [6, 3]  # the first panel makes the legend's too
    x, y = figure.axes[1].lines[2].get_data()
    assert list(x) == [0, 2, 5, 8, 11, 14] and max(y) == pytest.approx(1.05)
