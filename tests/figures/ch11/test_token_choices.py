import numpy as np
from figures.ch11 import token_choices


def test_weights_stand_at_the_chosen_experts():
    weights = np.array([[0.75, 0.25], [0.5, 0.5]])
    found = token_choices.chosen_weights(weights, np.array([[2, 0], [1, 2]]), 3)
    assert found.tolist() == [[0.25, 0], [0, 0.5], [0.75, 0.5]]


def test_a_grid_for_each_panel():
    weights = np.array([[1.0, 0.0], [0.0, 1.0]])
    figure = token_choices.draw("ab", {"first": weights, "second": weights})
    assert [axes.get_title(loc="left") for axes in figure.axes[:2]] == ["first", "second"]
    assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ["a", "b"]
