"""Where the stages of a model are in the picture."""

from itertools import pairwise

from figures.ch07.partition import cells, draw
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Rectangle

from minidist.show.palette import of_rank


def test_every_layer_once_in_order():
    row = cells([2, 3, 3])
    assert [cell.name for cell in row] == ["embedding", *map(str, range(8)), "head"]
    assert [cell.stage for cell in row] == [0] * 3 + [1] * 3 + [2] * 4
    gaps = [round(b.left - a.left - a.width, 6) for a, b in pairwise(row)]
    assert [gap > 0 for gap in gaps] == [a.stage != b.stage for a, b in pairwise(row)]


def test_colours_are_the_ranks_and_two_arrows_cross_each_border():
    axes = draw([1, 1, 1, 1], 2).axes[0]
    boxes = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    assert [to_hex(box.get_facecolor()).upper() for box in boxes] == [of_rank(r) for r in (0, 0, 1, 0, 1, 1)]
    assert sum(isinstance(patch, FancyArrowPatch) for patch in axes.patches) == 2 * 3 + 2  # and the tied weight's
