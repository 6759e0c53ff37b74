"""Which axis of a mesh a message belongs to, and a line for each pair that talks."""

import numpy as np
from figures.axes import COLOURS, along, draw
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

SHAPE = (2, 2, 2)  # rank = 4 pp + 2 dp + tp


def flows():
    sent = np.zeros((8, 8), int)
    sent[0, 1] = sent[1, 0] = 100
    sent[0, 2] = 30
    sent[0, 4] = sent[4, 0] = 20
    sent[0, 7] = 5  # along no axis alone
    return sent


def test_each_flow_belongs_to_one_axis():
    found = along(flows(), SHAPE)
    assert {axis: int(flow.sum()) for axis, flow in found.items()} == {"pp": 40, "dp": 30, "tp": 200}
    assert found["dp"][0, 2] == 30 and found["pp"][4, 0] == 20


def test_a_line_for_each_pair():
    axes = draw(flows(), SHAPE, 10, "x").axes[0]
    lines = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
    assert sorted(to_hex(line.get_edgecolor()).upper() for line in lines) == sorted(COLOURS.values())
    widths = {to_hex(line.get_edgecolor()).upper(): line.get_linewidth() for line in lines}
    assert widths[COLOURS["tp"]] > widths[COLOURS["pp"]] > widths[COLOURS["dp"]] > 1
