"""What the picture of a step calls equal is equal."""

import numpy as np
import pytest
from figures.ch04 import replicas


def test_columns_say_whether_the_ranks_agree():
    same, other = np.arange(4.0), np.array([0.0, 1.0, 2.0, 3.0 + 1e-15])
    figure = replicas.draw({"weights": [same, same.copy()], "gradients": [same, other]}, ["backward"])
    assert [axes.get_title().split("\n")[1] for axes in figure.axes] == ["same on all ranks", "different"]
    assert [text.get_text() for text in figure.texts] == ["backward"]


def test_every_number_is_a_cell_on_a_scale_around_zero():
    figure = replicas.draw({"a": [np.array([1.0, -8.0]), np.array([2.0, 3.0]), np.array([0.0, 0.0])]})
    image = figure.axes[0].images[0]
    assert image.get_array().tolist() == [[1, -8], [2, 3], [0, 0]]
    assert image.get_clim() == (-8, 8)


def test_ragged_columns_are_refused():
    with pytest.raises(ValueError, match="same length"):
        replicas.draw({"a": [np.zeros(2), np.zeros(2)], "b": [np.zeros(3), np.zeros(3)]})
