"""Algorithms for groups on several nodes: as few bytes as possible go from node to node, over all links at once.

With n nodes of L ranks each, N = n L, a rank has two groups: ``inside``, the ranks of its node, and ``across``, the
ranks with its local index, one on each node. Each algorithm is built from the textbook's programs on these two. All
ranks of a node send to other nodes at the same time, each its share: in a DGX H100 every GPU has a network card of its
own, and the cards with one local index form a "rail". (Horovod's all-reduce of this kind is switched on with
``HOROVOD_HIERARCHICAL_ALLREDUCE``.)

M is the bytes of the whole buffer, as in algorithms.py. The group needs the same number of ranks on every node. On a
single node ``across`` has one rank, and the algorithms become those of one level.
"""

import numpy as np

from minidist.comm.algorithms import (
    all_gather_ring,
    all_reduce_ring,
    all_to_all_pairwise,
    broadcast_ring,
    reduce_scatter_ring,
    scatter_direct,
)
from minidist.comm.group import ProcessGroup
from minidist.comm.placement import node_grid, two_levels
from minidist.overrides import overridable


@overridable
def all_reduce_hierarchical(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """Reduce-scatter inside the node, all-reduce across, all-gather inside.

    After the first phase a rank has 1/L of its node's sum. Ranks that have the same part then sum it across nodes. Each
    rank sends 2 (L-1)/L M inside its node, and 2 (n-1)/n M/L to other nodes. In a flat ring only one rank of a node
    sends to another node, but it sends about 2 M.
    """
    inside, across = two_levels(group)
    parts = np.array_split(flat, inside.size)
    reduce_scatter_ring(parts, combine, inside)
    all_reduce_ring(parts[inside.rank], combine, across)
    all_gather_ring(parts, inside)


def reduce_scatter_hierarchical(chunks: list[np.ndarray], combine: np.ufunc, group: ProcessGroup) -> None:
    """Reduce-scatter inside the node, by local index of the rank that keeps a chunk; then reduce-scatter across.

    ``chunks[rank]`` ends up as the combination of all ranks' chunks number ``rank``. Each rank sends (L-1)/L M inside
    its node, and (n-1)/n M/L to other nodes.
    """
    inside, across = two_levels(group)
    columns = node_grid(group.nodes).T  # (ranks per node, nodes)
    parts = [np.concatenate([chunks[rank] for rank in column]) for column in columns]
    reduce_scatter_ring(parts, combine, inside)
    mine = np.split(parts[inside.rank], across.size)
    reduce_scatter_ring(mine, combine, across)
    chunks[group.rank][:] = mine[across.rank]


def all_gather_hierarchical(chunks: list[np.ndarray], group: ProcessGroup) -> None:
    """All-gather across, then all-gather the result inside the node: the reduce-scatter in reverse, with its bytes."""
    inside, across = two_levels(group)
    columns = node_grid(group.nodes).T  # (ranks per node, nodes)
    all_gather_ring([chunks[rank] for rank in columns[inside.rank]], across)
    parts = [np.concatenate([chunks[rank] for rank in column]) for column in columns]
    all_gather_ring(parts, inside)
    for column, part in zip(columns, parts, strict=True):
        for rank, chunk in zip(column, np.split(part, across.size), strict=True):
            chunks[rank][:] = chunk


def broadcast_hierarchical(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """Scatter inside the source's node, broadcast across, all-gather inside every node.

    All links between nodes carry a part, M/L each, and none carries the whole. Inside its node a rank sends (L-1)/L M
    in the all-gather, and the source sends as much before it.
    """
    inside, across = two_levels(group)
    ((node, local),) = np.argwhere(node_grid(group.nodes) == src).tolist()
    parts = np.array_split(flat, inside.size)
    if across.rank == node:
        scatter_direct(parts[inside.rank], parts, local, inside)
    broadcast_ring(parts[inside.rank], node, across)
    all_gather_ring(parts, inside)


def all_to_all_hierarchical(outgoing: list[np.ndarray], incoming: list[np.ndarray], group: ProcessGroup) -> None:
    """Inside the node by the destination's local index, then across: one message to each node in place of L.

    First a rank gives each colleague on its node the pieces for all ranks with the colleague's local index. Then it
    sends each other node one message: all that its own node has for the rank with its local index there. It sends as
    much to other nodes as the pairwise exchange, (n-1)/n M, but in n-1 messages instead of N-L; inside its node it
    sends (L-1)/L M. This pays where messages are small: DeepSpeed-MoE (Rajbhandari et al., 2022) and Tutel (2DH; Hwang
    et al., 2022) send tokens to experts in this way.

    Sizes may differ from pair to pair. A rank knows what arrives for itself, but not what it passes on, so colleagues
    exchange these sizes first: 8 n bytes to each.
    """
    inside, across = two_levels(group)
    rows = node_grid(group.nodes)  # (nodes, ranks per node)
    columns, dtype = rows.T, outgoing[0].dtype

    sizes = [np.array([outgoing[rank].size for rank in column]) for column in columns]
    theirs = [np.empty(across.size, sizes[0].dtype) for _ in columns]  # by colleague: elements for each node
    all_to_all_pairwise(sizes, theirs, inside)

    parts = [np.concatenate([outgoing[rank] for rank in column]) for column in columns]
    collected = [np.empty(size.sum(), dtype) for size in theirs]
    all_to_all_pairwise(parts, collected, inside)

    by_colleague = [cut(part, size) for part, size in zip(collected, theirs, strict=True)]
    messages = [np.concatenate(pieces) for pieces in zip(*by_colleague, strict=True)]  # to each node
    arrived = [np.empty(sum(incoming[rank].size for rank in row), dtype) for row in rows]
    all_to_all_pairwise(messages, arrived, across)
    for row, message in zip(rows, arrived, strict=True):
        for rank, piece in zip(row, cut(message, [incoming[rank].size for rank in row]), strict=True):
            incoming[rank][:] = piece


def cut(flat: np.ndarray, sizes) -> list[np.ndarray]:
    """Return consecutive pieces of an array, as views: piece i has ``sizes[i]`` elements."""
    return np.split(flat, np.cumsum(sizes)[:-1])
