"""Groups of a mesh on nodes, and the traffic between nodes."""

import numpy as np
from figures.ch09 import mesh_groups, traffic_matrix
from matplotlib.colors import to_rgba
from matplotlib.patches import FancyArrowPatch, Rectangle

from minidist.show.palette import AXES


def test_how_many_groups_are_within_a_node():
    assert [mesh_groups.within_a_node(mesh_groups.groups_of((2, 2, 4), dim), 4) for dim in range(3)] == [0, 0, 4]
    assert [mesh_groups.within_a_node(mesh_groups.groups_of((4, 2, 2), dim), 4) for dim in range(3)] == [0, 8, 8]
    assert mesh_groups.within_a_node(mesh_groups.groups_of((3, 2), 1), 3) == 2  # [2, 3] is on two nodes


def test_a_line_joins_each_group():
    figure = mesh_groups.draw((2, 2, 4), ("pp", "dp", "tp"), 4)
    counts = [sum(isinstance(patch, FancyArrowPatch) for patch in panel.patches) for panel in figure.axes]
    assert counts == [8, 8, 4 * 3]
    assert [panel.get_title().split(": ")[0] for panel in figure.axes] == ["pp=2", "dp=2", "tp=4"]


def test_colours_show_the_axis_and_how_much():
    sent = np.zeros((4, 4))
    sent[0, 1], sent[0, 2], sent[3, 0] = 100, 10, 0.01  # along tp, along dp, along both; too little
    image = traffic_matrix.image(sent, (2, 2), ("dp", "tp"))
    assert np.allclose(image[0, 1], to_rgba(AXES["tp"]))
    assert np.allclose(image[0, 2, :3], to_rgba(AXES["dp"])[:3]) and 0.5 < image[0, 2, 3] < 0.6
    assert image[3, 0].tolist() == [1, 1, 1, 1] == image[1, 1].tolist()


def test_frames_are_nodes():
    sent = np.zeros((8, 8))
    sent[0, 1], sent[0, 4] = 5, 3
    figure = traffic_matrix.draw({"one": (sent, (2, 2, 2), ("pp", "dp", "tp"))}, 4, 1, "bytes")
    frames = [patch for patch in figure.axes[0].patches if isinstance(patch, Rectangle)]
    assert [(frame.get_x(), frame.get_width()) for frame in frames] == [(-0.5, 4), (3.5, 4)]
    assert "between nodes: 3.00 bytes" in figure.axes[0].get_title()
