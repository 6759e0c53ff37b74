from figures.ch12 import failure_times
from matplotlib.colors import to_hex


def test_a_straight_line_through_the_points_that_were_counted():
    figure = failure_times.draw(1000.0, {"a run": (100, 10.0)}, {"a day": 24.0})
    (axes,) = figure.axes
    line, point = axes.lines[0], next(line for line in axes.lines if to_hex(line.get_color()) == "#d55e00")
    products = [x * y for x, y in zip(*line.get_data(), strict=True)]
    assert all(abs(product / 1000 - 1) < 1e-12 for product in products)
    assert [float(value[0]) for value in point.get_data()] == [100, 10]
    assert {"a run", "a day"} <= {text.get_text() for text in axes.texts}
