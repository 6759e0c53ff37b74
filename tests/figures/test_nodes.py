"""Traffic inside nodes and between them."""

import numpy as np
from figures.nodes import BETWEEN, INSIDE, draw
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch

RING = np.roll(np.eye(4, dtype=int), 1, axis=1) * 100  # each to its right neighbour
PAIRS = np.array([[0, 90, 10, 0], [90, 0, 0, 10], [10, 0, 0, 90], [0, 10, 90, 0]])


def test_an_arrow_for_each_flow():
    noise = PAIRS * 100 + (PAIRS == 0)  # a few bytes for the loss
    for axes, flow in zip(
        draw({"ring": (RING, 4), "hybrid": (noise, 2)}, 2, 100, "M").axes, (RING, PAIRS), strict=True
    ):
        arrows = [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]
        assert len(arrows) == np.count_nonzero(flow)
        colours = [to_hex(arrow.get_facecolor()).upper() for arrow in arrows]
        node = np.arange(4) // 2
        between = np.count_nonzero(flow[node[:, None] != node])
        assert colours.count(BETWEEN) == between and colours.count(INSIDE) == len(arrows) - between
