from figures.ch13 import collective_times


def test_lines_and_points_in_microseconds():
    figure = collective_times.draw({"8 ranks": {"ring": ({1e3: 1e-6, 1e6: 1e-3}, {1e6: 2e-3})}})
    (axes,) = figure.axes
    line, points = axes.lines
    assert [round(value) for value in line.get_ydata()] == [1, 1000] and list(points.get_ydata()) == [2000]
