"""What a layout holds, and what it pays."""

from figures import bill
from matplotlib.patches import Rectangle

ROWS = [
    {"axis": "tp", "name": "all_reduce", "bytes_sent": 5},
    {"axis": "shard", "name": "reduce_scatter_tensor", "bytes_sent": 7},
    {"axis": "dp", "name": "all_reduce", "bytes_sent": 1},
    {"axis": "embedding", "name": "all_reduce", "bytes_sent": 2},
    {"axis": "pp", "name": "send", "bytes_sent": 3},
]


def test_groups_inside_an_axis_count_for_it():
    assert bill.by_axis(ROWS) == {"pp": 5, "dp": 8, "tp": 5}


def test_numbers():
    assert [bill.short(number) for number in (0, 7.568, 98.44, 1607.6)] == ["0", "7.57", "98.4", "1,608"]


def test_a_bar_that_is_too_long_is_cut():
    bills = {"small": ({"parameters": 3, "gradients": 4}, {"tp": 2}), "large": ({"parameters": 90}, {"tp": 1})}
    figure = bill.draw(bills, ("left", "right"), limits=(8, None), longest=(10, None))
    left, right = figure.axes
    bars = [(b.get_x(), b.get_width()) for b in left.patches if isinstance(b, Rectangle) and b.get_width()]
    assert bars == [(0, 3), (3, 4), (0, 10)]
    assert [text.get_text() for text in left.texts] == ["7", "» 90"]
    assert [text.get_text() for text in right.texts] == ["2", "1"]
    assert left.lines[0].get_xdata()[0] == 8 and not right.lines
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["parameters", "gradients"]
