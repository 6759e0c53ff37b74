"""How evenly experts were loaded, from counts made by hand."""

import numpy as np

from minidist.analysis.expert_load import ExpertLoad

COUNTS = [np.array([[4, 0, 2, 2, 1, 6], [8, 0, 0, 0, 0, 4]]), np.array([[2, 2, 2, 2, 0, 7], [1, 3, 1, 3, 2, 8]])]


def test_columns_imbalance_and_ranks():
    load = ExpertLoad.of(COUNTS)
    assert load.tokens.shape == (2, 2, 4) and load.dropped.tolist() == [[1, 0], [0, 2]]
    assert load.visits.tolist() == [[6, 4], [7, 8]]
    assert load.imbalance.tolist() == [[2, 4], [1, 1.5]]
    assert load.by_rank(2).tolist() == [[[4, 4], [8, 0]], [[4, 4], [4, 4]]]
    assert load.by_rank(4).tolist() == load.tokens.tolist()
