"""What a mixture sends against what tensor parallelism sends: the formulas, at their ends and where they cross."""

import pytest

from minidist.plan.expert_traffic import (
    Links,
    all_reduce_elements,
    all_reduce_seconds,
    all_to_all_elements,
    all_to_all_seconds,
    between_nodes,
    smallest_k,
)

NODE = Links(inside=10.0, between=1.0, node_size=8)


def test_one_rank_sends_nothing():
    assert all_to_all_elements(100, 64, 2, 1) == all_reduce_elements(100, 64, 1) == between_nodes(100, 64, 2, 1, 8) == 0


def test_inside_a_node_k_rows_cost_k_times_as_much():
    for k in (1, 2, 8):
        assert all_to_all_elements(100, 64, k, 8) == k * all_reduce_elements(100, 64, 8)
        assert all_to_all_seconds(100, 64, k, 8, NODE) == k * all_reduce_seconds(100, 64, 8, NODE)
    assert smallest_k(8, 8, 64, NODE) == 2
    assert smallest_k(4, 8, 64, NODE) == 2 and smallest_k(2, 8, 64, NODE) == 2  # 3/4 and 1/2 of the rows, for 7/8


def test_what_leaves_the_node_decides():
    assert between_nodes(100, 64, 2, 16, 8) == all_to_all_elements(100, 64, 2, 16) * (8 / 15)
    assert between_nodes(100, 64, 2, 8, 8) == 0
    assert smallest_k(16, 8, 64, NODE) == 1  # half of the rows on links that are ten times slower
    assert smallest_k(16, 8, 64, Links(1.0, 1.0, 8)) == 2
    assert smallest_k(2, 2, 1, NODE) is None  # one expert for each token, inside: just as much


def test_the_same_batch_is_t_times_as_many_tokens_for_each_tensor_parallel_rank():
    assert smallest_k(8, 8, 64, NODE, same_batch=True) == 9
    assert smallest_k(64, 64, 256, Links(10.0, 1.0, 64), same_batch=True) == 65
    assert smallest_k(64, 8, 64, NODE, same_batch=True) == 1  # 7/8 of the rows leave the node, ten times slower
    assert smallest_k(64, 8, 64, Links(1.0, 1.0, 8), same_batch=True) == 9  # 7 x 8/8 / (7/8): 8 take as long
    assert smallest_k(8, 8, 8, NODE, same_batch=True) is None


def test_tensor_parallelism_stays_in_a_node():
    with pytest.raises(ValueError, match="16 tensor-parallel ranks do not fit a node of 8"):
        all_reduce_seconds(1, 1, 16, NODE)
