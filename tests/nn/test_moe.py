"""A mixture of experts in one process: choices, ties, drops and counts. (What it computes: test_torch.py.)"""

from itertools import product

import numpy as np

from minidist.nn.config import MoEConfig
from minidist.nn.moe.balance import moved_bias
from minidist.nn.moe.experts import GroupedLinear
from minidist.nn.moe.permutation import Route, sort_by_expert
from minidist.nn.moe.router import top_k_experts, within_nodes
from minidist.nn.tensor import Tensor


def numbers(*shape: int, seed: int = 0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def test_the_highest_come_first_and_ties_go_to_the_lower_index():
    scores = np.float32([[0.1, 0.4, 0.4, 0.1], [0.25, 0.25, 0.25, 0.25], [0.0, 0.1, 0.2, 0.7]])
    assert top_k_experts(scores, 3).tolist() == [[1, 2, 0], [0, 1, 2], [3, 2, 1]]
    assert top_k_experts(np.zeros((5, 64), np.float32), 7).tolist() == [list(range(7))] * 5
    assert within_nodes(scores[:0], 2, 1, 2).shape == (0, 4)


def test_rows_are_sorted_by_expert_and_then_by_token():
    sizes = [(0, 2, 4), (1, 1, 1), (7, 3, 5), (50, 2, 64)]
    for (tokens, k, experts), capacity in product(sizes, (None, 1, 3, 1000)):
        chosen = top_k_experts(numbers(tokens, experts), k)
        order, counts = sort_by_expert(chosen, experts, capacity)
        expected = [
            [token * k + j for token in range(tokens) for j in range(k) if chosen[token, j] == expert][:capacity]
            for expert in range(experts)
        ]
        assert order.tolist() == [choice for some in expected for choice in some], (tokens, capacity)
        assert counts.tolist() == [len(some) for some in expected], (tokens, capacity)
        route = Route(chosen, experts, capacity)
        kept = route.rows >= 0
        assert kept.sum() == len(order) and (route.order[route.rows[kept]] == np.flatnonzero(kept)).all()
        assert route.counts == counts.tolist() and all(type(count) is int for count in route.counts)


def test_flops_are_those_of_the_rows():
    x, weight = Tensor(numbers(2, 6, 4)), Tensor(numbers(2, 3, 4, 5))
    assert GroupedLinear.flops(GroupedLinear.apply(x, weight, [1, 0, 5], False).data, x.data) == 2 * 2 * 6 * 4 * 5


def test_a_bias_moves_against_the_excess_however_large_the_counts_are():
    counts = np.array([[40_840, 41_000, 41_216, 40_000], [7, 7, 7, 7]])
    moved = moved_bias(np.zeros((2, 4), np.float32), counts, 0.5)
    assert moved.tolist() == [[-0.5, -0.5, -0.5, 0.5], [0, 0, 0, 0]] and moved.dtype == np.float32
    near = np.array([[40_850, 40_900]])  # in bfloat16 both are 40,960, and neither bias would move
    assert moved_bias(np.zeros((1, 2), np.float32), near, 0.5).tolist() == [[0.5, -0.5]]
    large = np.array([[2**40, 2**40 + 1, 2**40 + 2]])  # one more than the mean, beyond what float32 tells apart
    assert np.sign(moved_bias(np.zeros((1, 3), np.float32), large, 1.0)).tolist() == [[1, 0, -1]]


def test_capacity_is_rounded_up_from_the_number_as_it_is_written():
    for capacity, k, experts, tokens, rows in (
        (1.0, 2, 8, 24, 6), (1.1, 2, 4, 100, 55), (1.25, 2, 8, 25, 8), (1e-9, 1, 8, 100, 1), (1e300, 2, 8, 10, 10),
        (2, 1, 8, 0, 0),
    ):  # fmt: skip
        assert MoEConfig(experts, k, capacity=capacity).rows_at_most(tokens) == rows, capacity
