"""A line for each pair of ranks that communicates, in the colour of its axis."""

import numpy as np
from figures.ch07.mesh_traffic import draw
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

from minidist.show.palette import AXES

SHAPE = (2, 2, 2)  # rank = 4 pp + 2 dp + tp


def flows():
    sent = np.zeros((8, 8), int)
    sent[0, 1] = sent[1, 0] = 100
    sent[0, 2] = 30
    sent[0, 4] = sent[4, 0] = 20
    sent[0, 7] = 5  # along no axis alone
    return sent


def test_a_line_for_each_pair():
    axes = draw(flows(), SHAPE, 10, "x").axes[0]
    lines = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert sorted(to_hex(line.get_edgecolor()).upper() for line in lines) == sorted(
        AXES[axis] for axis in ("pp", "dp", "tp")
    )
    widths = {to_hex(line.get_edgecolor()).upper(): line.get_linewidth() for line in lines}
    assert widths[AXES["tp"]] > widths[AXES["pp"]] > widths[AXES["dp"]] > 1
