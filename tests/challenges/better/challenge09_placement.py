"""Swaps of two ranks as long as the best of them helps, from several starts; the best end counts."""

import numpy as np


def place_ranks(sent, per_node):
    both = sent + sent.T
    n = len(both)
    node = np.arange(n) // per_node
    rng = np.random.default_rng(0)
    starts = [np.arange(n), *(rng.permutation(n) for _ in range(60))]
    ends = [improved(both, node, start) for start in starts]
    return min(ends, key=lambda order: crossing(both, node, order)).tolist()


def crossing(both, node, order):
    return both[np.ix_(order, order)][node[:, None] != node].sum()


def improved(both, node, order):
    order = order.copy()
    nodes = np.eye(node.max() + 1, dtype=both.dtype)[node]  # (places, nodes)
    while True:
        here = both[np.ix_(order, order)]  # (places, places)
        to = here @ nodes  # (places, nodes): what the rank at a place shares with each node
        leave = to[:, node] - to[np.arange(len(node)), node][:, None]  # (places, places): gain of moving there
        gain = leave + leave.T - 2 * here * (node[:, None] != node)
        first, second = np.unravel_index(gain.argmax(), gain.shape)
        if gain[first, second] <= 0:
            return order
        order[[first, second]] = order[[second, first]]
