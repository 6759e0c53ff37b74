"""Memory over time: areas that stand on each other, drawn over milliseconds from the first moment."""

import numpy as np

from minidist.show.levels import draw, edges

LEVELS = [
    (5_000_000, {"parameters": 4_000_000, "optimizer": 8_000_000}),
    (6_000_000, {"parameters": 4_000_000, "optimizer": 2_000_000}),
    (9_000_000, {"parameters": 1_000_000, "optimizer": 2_000_000}),
]
KINDS = ("parameters", "optimizer")


def test_edges():
    assert edges(LEVELS, KINDS) == [[4e6, 4e6, 1e6], [12e6, 6e6, 3e6]]
    assert edges(LEVELS, ("optimizer",)) == [[8e6, 2e6, 2e6]]


def test_areas():
    (axes,) = draw({"stage 1": LEVELS}, KINDS, {"stage 1": {7_000_000: "backward"}}).axes
    lower, upper = (np.concatenate([path.vertices for path in area.get_paths()]) for area in axes.collections)
    assert lower[:, 0].max() == 4 and lower[:, 1].max() == 4  # ms, MB
    assert upper[:, 1].max() == 12 < axes.get_ylim()[1] and axes.get_ylim()[0] == 0
    assert axes.lines[0].get_xdata()[0] == 2
