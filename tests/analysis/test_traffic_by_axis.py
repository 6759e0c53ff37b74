"""Traffic by axis and by node."""

import numpy as np

from minidist.analysis.traffic import along, inside_and_between, renumbered

RING = np.roll(np.eye(4, dtype=int), 1, axis=1) * 100  # each to its right neighbour
PAIRS = np.array([[0, 90, 10, 0], [90, 0, 0, 10], [10, 0, 0, 90], [0, 10, 90, 0]])


def test_each_flow_belongs_to_one_axis():
    sent = np.zeros((8, 8), int)  # rank = 4 pp + 2 dp + tp
    sent[0, 1] = sent[1, 0] = 100
    sent[0, 2] = 30
    sent[0, 4] = sent[4, 0] = 20
    sent[0, 7] = 5  # along no axis alone
    found = along(sent, (2, 2, 2))
    assert {axis: int(flow.sum()) for axis, flow in found.items()} == {"pp": 40, "dp": 30, "tp": 200}
    assert found["dp"][0, 2] == 30 and found["pp"][4, 0] == 20


def test_inside_nodes_and_between_them():
    assert inside_and_between(RING, 2) == (200, 200)
    assert inside_and_between(PAIRS, 2) == (360, 40)
    assert inside_and_between(RING, 4) == (400, 0)


def test_another_order_moves_rows_and_columns():
    sent = np.arange(16).reshape(4, 4)
    assert renumbered(sent, (2, 2), (1, 0))[0].tolist() == [0, 2, 1, 3]  # rank 2 is at place 1
    assert np.array_equal(renumbered(renumbered(sent, (2, 2), (1, 0)), (2, 2), (1, 0)), sent)
