from figures.ch13 import levels
from figures.ch13.levels import CHIP, CLUSTER, Level


def test_a_bar_for_each_level_and_the_step_between_them():
    figure = levels.draw([Level("memory", 3e12, CHIP), Level("a link", 50e9, CLUSTER)])
    (axes,) = figure.axes
    ends = [bar.get_x() + bar.get_width() for bar in axes.patches]
    assert ends == [3e12, 50e9]
    texts = {text.get_text() for text in axes.texts}
    assert {"3 TB/s", "50 GB/s", "÷ 60"} <= texts
