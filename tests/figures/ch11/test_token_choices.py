import numpy as np
from figures.ch11 import token_choices
from matplotlib.colors import to_hex


def test_a_square_for_each_choice_in_the_colour_of_its_token():
    chosen = np.array([[0, 2], [1, 0], [2, 0]])
    figure = token_choices.draw("aba", {"first": chosen, "second": chosen}, 3, {"a": "#0072b2"})
    for axes in figure.axes:
        found = {(int(p.get_x()), int(p.get_y())): to_hex(p.get_facecolor()) for p in axes.patches}
        assert found.keys() == {(0, 0), (0, 2), (1, 0), (1, 1), (2, 0), (2, 2)}
        assert {place for place, colour in found.items() if colour == "#0072b2"} == {(0, 0), (0, 2), (2, 0), (2, 2)}
        assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "a"]
