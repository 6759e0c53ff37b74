from figures.ch13 import double_trees
from matplotlib.colors import to_hex

from minidist.comm.nodes.double_tree import double_tree


def test_inner_ranks_of_one_tree_are_leaves_of_the_other():
    figure = double_trees.draw(double_tree(8))
    colours = []
    for axes in figure.axes:
        dots = [line for line in axes.lines if line.get_marker() == "o"]
        colours.append([to_hex(line.get_color()) for line in dots])
        assert len(dots) == 8 and len(axes.lines) == 8 + 7
    assert all({one, other} == {"#0072b2", "#d9d9d9"} for one, other in zip(*colours, strict=True))


def test_depths():
    assert double_trees.depths([None, 0, 1, 0]) == [0, 1, 2, 1]
