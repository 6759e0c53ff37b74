"""Groups of a mesh on machines, and what goes between them."""

import numpy as np
import pytest
from figures import axes, mesh, wires
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyArrowPatch, Rectangle


@pytest.mark.parametrize(
    "dim, expected", [(0, [[0, 4], [1, 5], [2, 6], [3, 7]]), (2, [[0, 1], [2, 3], [4, 5], [6, 7]])]
)
def test_lines(dim, expected):
    assert mesh.lines((2, 2, 2), dim).tolist() == expected


def test_how_many_groups_a_machine_holds():
    assert [mesh.inside(mesh.lines((2, 2, 4), dim), 4) for dim in range(3)] == [0, 0, 4]
    assert [mesh.inside(mesh.lines((4, 2, 2), dim), 4) for dim in range(3)] == [0, 8, 8]
    assert mesh.inside(mesh.lines((3, 2), 1), 3) == 2  # [2, 3] lies on two


def test_a_line_joins_each_group():
    figure = mesh.draw((2, 2, 4), ("pp", "dp", "tp"), 4)
    counts = [sum(isinstance(patch, FancyArrowPatch) for patch in panel.patches) for panel in figure.axes]
    assert counts == [8, 8, 4 * 3]
    assert [panel.get_title().split(": ")[0] for panel in figure.axes] == ["pp=2", "dp=2", "tp=4"]


def test_another_order_moves_rows_and_columns():
    sent = np.arange(16).reshape(4, 4)
    assert wires.moved(sent, (2, 2), (1, 0))[0].tolist() == [0, 2, 1, 3]  # rank 2 sits at place 1
    assert np.array_equal(wires.moved(wires.moved(sent, (2, 2), (1, 0)), (2, 2), (1, 0)), sent)


def test_colours_say_the_axis_and_how_much():
    sent = np.zeros((4, 4))
    sent[0, 1], sent[0, 2], sent[3, 0] = 100, 10, 0.01  # along tp, along dp, along both; too little
    image = wires.image(sent, (2, 2), ("dp", "tp"))
    assert np.allclose(image[0, 1], to_rgba(axes.COLOURS["tp"]))
    assert np.allclose(image[0, 2, :3], to_rgba(axes.COLOURS["dp"])[:3]) and 0.5 < image[0, 2, 3] < 0.6
    assert image[3, 0].tolist() == [1, 1, 1, 1] == image[1, 1].tolist()


def test_frames_are_machines():
    sent = np.zeros((8, 8))
    sent[0, 1], sent[0, 4] = 5, 3
    figure = wires.draw({"one": (sent, (2, 2, 2), ("pp", "dp", "tp"))}, 4, 1, "bytes")
    frames = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert [(frame.get_x(), frame.get_width()) for frame in frames] == [(-0.5, 4), (3.5, 4)]
    assert "between machines: 3.00 bytes" in figure.axes[0].get_title()
