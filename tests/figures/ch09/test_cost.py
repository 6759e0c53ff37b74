"""What a layout costs, in memory and in time or traffic."""

from figures.ch09 import cost
from matplotlib.patches import Rectangle


def test_numbers():
    assert [cost.short(number) for number in (0, 7.568, 98.44, 1607.6)] == ["0", "7.57", "98.4", "1,608"]


def test_a_bar_that_is_too_long_is_cut():
    costs = {"small": ({"parameters": 3, "gradients": 4}, {"tp": 2}), "large": ({"parameters": 90}, {"tp": 1})}
    figure = cost.draw(costs, ("left", "right"), limits=(8, None), longest=(10, None))
    left, right = figure.axes
    bars = [(b.get_x(), b.get_width()) for b in left.patches if isinstance(b, Rectangle) and b.get_width()]
    assert bars == [(0, 3), (3, 4), (0, 10)]
    assert [text.get_text() for text in left.texts] == ["7", "» 90"]
    assert [text.get_text() for text in right.texts] == ["2", "1"]
    assert left.lines[0].get_xdata()[0] == 8 and not right.lines
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["parameters", "gradients"]
