"""Chapter 13: the network: what a GPU and its links can carry, two-level collectives, placing ranks on nodes.

**Nodes.** n nodes have L ranks each, N = n L in all. Ranks 0 to L - 1 are on node 0, the next L on node 1, and so on.
A rank's *local index* is its place in its node. Links inside a node are about ten times as fast as those between nodes.
Every rank has a link of its own to the network between the nodes (a *rail*).

``group.nodes`` has the node of each rank of a group, in the group's order. ``group.part([0, 4])`` is a group of some of
its ranks, this one among them, in which they are ranks 0 and 1. It costs nothing.

Three functions have the names and arguments of minidist's own, so the library can train and replay with them:

    minidist verify --impl exercises dp=4,node_size=2,algorithm=hierarchical
    minidist verify --impl exercises dp=4,algorithm=double_tree

You may use the imports below, NumPy, and what you write here. ``minidist check 13`` grades this file,
``minidist check --hint 13.6`` gives a hint.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from math import ceil, inf, log2, prod

import numpy as np

from minidist import ProcessGroup
from minidist.comm.algorithms import all_gather_ring, all_reduce_ring, reduce_scatter_ring
from minidist.plan.cluster.topology import Edge, Topology

Parents = list[int | None]  # of each rank in a tree; None for its root


# 13.1  Worksheet: where 989 TFLOP/s comes from
#
# An H100 has 132 streaming multiprocessors (SMs), and each of them 4 tensor cores. In every clock cycle a tensor core
# multiplies a 16 x 4 matrix by a 4 x 8 matrix and adds the result to a 16 x 8 matrix, in 16-bit numbers. The clock runs
# at up to 1.83 GHz. A multiply-add counts as two FLOPs.


def tensor_core_flops(m: int, k: int, n: int) -> int:
    """The FLOPs of adding the product of an m x k and a k x n matrix to an m x n matrix."""
    raise NotImplementedError("task 13.1")


def peak_flops(sms: int, cores: int, flops_per_cycle: float, clock: float) -> float:
    """The FLOP/s of a chip. ``cores``: in each SM. ``flops_per_cycle``: of each core. ``clock``: Hz."""
    raise NotImplementedError("task 13.1")


def dense_flops(printed: float, sparse: bool) -> float:
    """The FLOP/s of ordinary products, from what a data sheet prints.

    Many print the rate for *sparse* matrices. Of every four elements in a row two are zero there, the hardware skips
    them, and the sheet counts them all the same.
    """
    raise NotImplementedError("task 13.1")


def flops_needed_per_byte(flops_per_cycle: float, bandwidth: float, sms: int, clock: float) -> float:
    """The FLOPs that an SM must do with each byte from memory, so that its cores never wait.

    ``flops_per_cycle``: of all cores of one SM. ``bandwidth``: of the chip's memory, bytes/s; all SMs share it evenly.
    """
    raise NotImplementedError("task 13.1")


# 13.2  Worksheet: prefill and decode on the roofline
#
# A model of N parameters in ``layers`` layers of ``width`` generates text. *Prefill* reads a prompt: all its tokens at
# once. *Decode* makes one token for each sequence of a batch, again and again. Each multiplies by every weight: 2 N
# FLOPs per token. A token attends to itself and all before it: 4 layers width FLOPs for each of them, to multiply by
# keys and by values. Keys and values of earlier tokens are kept, in the *KV cache*: two vectors of ``kv_width``
# elements in each layer. (With grouped-query attention kv_width is less than width.)
#
# A chip does ``peak`` FLOP/s and moves ``bandwidth`` bytes/s between its memory and its cores, at the same time. The
# slower of the two decides. An element takes ``itemsize`` bytes. Activations are small: ignore them.


def prefill_flops(parameters: int, layers: int, width: int, tokens: int) -> int:
    """The FLOPs for one prompt of ``tokens`` tokens. The first one attends to one token, the last one to all."""
    raise NotImplementedError("task 13.2")


def decode_flops(parameters: int, layers: int, width: int, batch: int, context: int) -> int:
    """The FLOPs for one new token of each sequence; each attends to ``context`` tokens, itself included."""
    raise NotImplementedError("task 13.2")


def decode_bytes(parameters: int, layers: int, kv_width: int, itemsize: int, batch: int, context: int) -> int:
    """The bytes that decode reads for it: every weight once, and each sequence's cache, ``context`` tokens."""
    raise NotImplementedError("task 13.2")


def tokens_per_second(flops: float, nbytes: float, batch: int, peak: float, bandwidth: float) -> float:
    """The most tokens that decode can make in a second, of all sequences together; FLOPs and bytes of one step."""
    raise NotImplementedError("task 13.2")


def least_batch(
    parameters: int, layers: int, width: int, kv_width: int, itemsize: int, context: int, peak: float, bandwidth: float
) -> float:
    """The least batch, a whole number, with which decode is limited by arithmetic and no longer by memory.

    That is, arithmetic takes at least as long. ``inf`` if it does so with no batch.
    """
    raise NotImplementedError("task 13.2")


# 13.3  Bisection bandwidth


def bisection_bandwidth(topology: Topology) -> float:
    """13.3  The bytes/s that one half of the chips can send to the other half at once, for the worst choice of halves.

    A *cut* puts every vertex of the network, chip or switch, on one of two sides. Half of the chips is on the first
    side (with an odd number of chips, half rounded down or half rounded up), and switches are anywhere. Its capacity is
    that of the links from the first side to the second. The bisection bandwidth is the least capacity of all cuts.

    Args:
        topology: ``topology.chips``, the vertex of each chip; ``topology.links``: (start, end) -> a link with its
            ``bandwidth``, for each direction. There are 2 to 9 chips and up to 6 other vertices: try all cuts.
    """
    raise NotImplementedError("task 13.3")


def fat_tree_bisection(nodes: int, per_node: int, bandwidth: float, oversubscription: float) -> float:
    """13.3  The bisection bandwidth of n nodes. Each GPU has a link of ``bandwidth`` bytes/s to its node's leaf switch.

    A leaf switch is linked to the spine. With an oversubscription of s this uplink carries 1/s of what its ports below
    do. Links inside nodes are not counted. n is even.
    """
    raise NotImplementedError("task 13.3")


def torus_bisection(shape: tuple[int, ...], bandwidth: float) -> float:
    """13.3  The bisection bandwidth of a torus of chips.

    Each has links of ``bandwidth`` bytes/s to its two neighbours in each dimension. All sides are even and at
    least 4 long.
    """
    raise NotImplementedError("task 13.3")


def fair_rates(routes: Sequence[Sequence[Edge]], bandwidths: Mapping[Edge, float]) -> list[float]:
    """13.4  The rates of messages that share links: max-min fairness.

    Messages that share a bottleneck link get equal shares of it. What a message leaves unused on other links, because
    it cannot be faster, is shared by the others there. In the end no message could be faster without slowing one that
    is no faster. The cluster's clock shares links in this way:
    ``minidist train --impl exercises --dp 8 --as-if h100:2x4`` uses your function.

    Args:
        routes: for each message the links that it crosses, at least one, none twice; links are (start, end), or any
            other keys. Not modified.
        bandwidths: of each link, bytes/s, above 0; it may have links that no message crosses. Not modified.

    Returns:
        The rate of each message, bytes/s.
    """
    raise NotImplementedError("task 13.4")


# 13.5  Worksheet: bytes between nodes
#
# An all-reduce of M bytes (``nbytes``) on n nodes of L ranks. How many bytes go from one node to another? Each function
# returns two numbers: the bytes of all ranks together, and those of the rank that sends the most to other nodes.
# On a single node both are 0. The algorithms are those of chapter 3, in ``minidist/comm/algorithms.py``.


def ring_crossing(nodes: int, per_node: int, nbytes: float) -> tuple[float, float]:
    """A ring through the ranks in their order."""
    raise NotImplementedError("task 13.5")


def dealt_ring_crossing(nodes: int, per_node: int, nbytes: float) -> tuple[float, float]:
    """A ring through the ranks in order, which were dealt out to the nodes like cards: rank r is on node r % n."""
    raise NotImplementedError("task 13.5")


def two_shot_crossing(nodes: int, per_node: int, nbytes: float) -> tuple[float, float]:
    """A direct reduce-scatter (every rank sends each chunk to the rank that keeps it) and a direct all-gather."""
    raise NotImplementedError("task 13.5")


def tree_crossing(nodes: int, per_node: int, nbytes: float) -> tuple[float, float]:
    """A binomial tree: reduce to rank 0, then broadcast from it. n and L are powers of two.

    In the reduction rank r, whose lowest set bit is b, sends to r - b. In the broadcast rank 0 sends to 1, then 0 and 1
    to 2 and 3, then 0 to 3 to 4 to 7, and so on.
    """
    raise NotImplementedError("task 13.5")


def hierarchical_crossing(nodes: int, per_node: int, nbytes: float) -> tuple[float, float]:
    """Two levels: a ring reduce-scatter inside the node, a ring all-reduce across, a ring all-gather inside.

    After the first, the ranks with the same local index have the same 1/L of the buffer, and sum it across.
    """
    raise NotImplementedError("task 13.5")


def hierarchical_seconds(
    nodes: int, per_node: int, nbytes: float, inside: tuple[float, float], between: tuple[float, float]
) -> float:
    """The seconds that this takes. ``inside``, ``between``: (alpha, beta) of each rank's links, in s and s/byte.

    A message of m bytes takes alpha + beta m. All ranks do the same at the same time.
    """
    raise NotImplementedError("task 13.5")


def all_reduce_hierarchical(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """13.6  Two-level all-reduce: as few bytes between nodes as possible, over all links between nodes at once.

    1. Reduce-scatter inside the node: each of its L ranks has one part of the node's sum.
    2. All-reduce across: the ranks with the same local index have the same part, and sum it.
    3. All-gather inside the node.

    A rank sends 2 (L-1)/L M inside its node, and 2 (n-1)/n M/L to one rank of another node, and to no other rank of
    other nodes.

    Args:
        flat: flat and C-contiguous, any dtype and any size, 0 included; becomes the combination of all ranks' arrays.
            Work in place: no second buffer of its size.
        combine: a ufunc, such as ``np.add``.
        group: of n nodes with equally many of its ranks on each, in any order: see ``group.nodes``. n and L may be 1.

    ``reduce_scatter_ring``, ``all_gather_ring`` and ``all_reduce_ring`` are those of chapter 3. They work in place.
    """
    raise NotImplementedError("task 13.6")


def double_tree(size: int) -> tuple[Parents, Parents]:
    """13.7  Two binary trees over the same ranks, for an all-reduce that gives each of them half of the buffer.

    A tree of depth log2 N has fewer steps than a ring. But its leaves, half of all ranks, pass nothing on, so half of
    the links idle. With two trees every rank works, if the leaves of one are the inner ranks of the other.

    Args:
        size: N, the number of ranks, 0 or more.

    Returns:
        For each tree a new list: the parent of each rank, a Python integer; None for the root.

        - Both are trees over ranks 0 to N - 1: one root, and from every rank parents lead to it.
        - No rank has more than two children in one tree.
        - No path to the root is longer than ceil(log2 N) links.
        - No rank is inner (has children) in both trees. If N is odd, one rank may be.
    """
    raise NotImplementedError("task 13.7")


# 13.8  Placing a mesh on nodes
#
# A mesh has a dimension for each axis of parallelism. A node takes a block of it: ``inside[i]`` ranks along dimension
# i, and ``across[i]`` nodes stand along it. So the mesh has the shape inside[i] * across[i], and a node has
# prod(inside) GPUs. With a mesh numbered row by row only the last dimensions are inside; here any block is possible.


def hybrid_mesh(inside: tuple[int, ...], across: tuple[int, ...]) -> np.ndarray:
    """13.8  The number of the GPU at each place of the mesh, as ``create_hybrid_device_mesh`` of JAX makes it.

    Node k has the GPUs k L to k L + L - 1, with L = prod(inside). Nodes stand in the mesh row by row (the last
    dimension changes fastest), and so do the GPUs of a node in its block.

    Returns:
        Integers, of the shape of the mesh.
    """
    raise NotImplementedError("task 13.8")


def axis_seconds(size: int, inside: int, nbytes: float, fast: float, slow: float) -> float:
    """13.8  The time of a two-level all-reduce of ``nbytes`` along an axis of ``size`` ranks, ``inside`` on each node.

    fast, slow: bytes/s of a rank's links inside a node and between nodes. Latencies do not count. ``inside`` divides
    ``size``.
    """
    raise NotImplementedError("task 13.8")


def best_inside(
    shape: tuple[int, ...], node_size: int, nbytes: Sequence[float], fast: float, slow: float
) -> tuple[int, ...]:
    """13.8  The block of a mesh that belongs in a node, so that all axes together communicate for the least time.

    In each step every axis all-reduces: axis i has ``nbytes[i]`` bytes on each rank. They do so one after another.

    Args:
        shape: of the mesh. node_size: GPUs in a node, 1 or more.

    Returns:
        ``inside``: it divides ``shape`` in every dimension, and its product is ``node_size``. Of several that are
        equally fast, any one.

    Raises:
        ValueError: if no block fits a node.
    """
    raise NotImplementedError("task 13.8")


def sync_shard(gradient: np.ndarray, group: ProcessGroup) -> tuple[np.ndarray, float]:
    """13.9  Debugging: the gradients of hybrid sharding, and their norm.

    Hybrid sharding (HSDP, ``HYBRID_SHARD``) shards a model inside each node, and every node has a replica: so the large
    all-gathers stay inside the node. After backward every rank has a gradient of the whole model, for its own samples.
    It needs its shard of the mean over all ranks, and for clipping the norm of the whole mean gradient.

    The authors tested this on two nodes of two GPUs, and looked at the shards. On two nodes of four, training diverges.
    And even on two nodes of two it clips gradients that are small enough and that one process does not clip. Find out
    why, and fix it.

    Args:
        gradient: flat, float64, of the whole model; not modified. Rank r of node k is rank k L + r of the group, and
            keeps part r of ``np.array_split(gradient, L)``.
        group: n nodes of L ranks, in the order of their nodes.

    Returns:
        This rank's shard of the mean gradient, and the 2-norm of all of the mean gradient, the same on every rank.
        Between nodes a rank sends only its part of the gradient, 2 (n-1)/n M/L bytes; squares stay inside the node.
    """
    nodes = len(set(group.nodes))
    per_node = group.size // nodes
    node, local = divmod(group.rank, per_node)
    inside = group.part(range(node * per_node, (node + 1) * per_node))
    across = group.part(range(group.rank % nodes, group.size, nodes))

    parts = np.array_split(gradient.copy(), per_node)
    reduce_scatter_ring(parts, np.add, inside)
    shard = parts[local]
    all_reduce_ring(shard, np.add, across)
    shard /= group.size

    squares = np.array([np.sum(shard**2)])
    all_reduce_ring(squares, np.add, group)
    return shard, float(np.sqrt(squares[0]))


# 13.10  Worksheet: MFU
#
# *Model FLOPs utilization* is the share of a cluster's peak that the model's own FLOPs take: how fast it trains, as a
# share that can be compared across clusters. (PaLM, Chowdhery et al., 2022, appendix B.) *Hardware FLOPs utilization*
# also counts the FLOPs that recomputation repeats.


def model_flops_per_token(parameters: int, layers: int, width: int, length: int) -> int:
    """The FLOPs of forward and backward for one token of a sequence of ``length`` tokens.

    Forward multiplies by each parameter, and by ``length`` keys and values in attention: 4 layers width length FLOPs.
    (The causal mask, with which half of that would do, is not counted, as in PaLM's paper.) Backward takes twice as
    many as forward.
    """
    raise NotImplementedError("task 13.10")


def hardware_flops_per_token(parameters: int, layers: int, width: int, length: int, recompute: str) -> int:
    """The FLOPs that the hardware does for such a token. ``recompute``: "none"; "attention": backward repeats the
    forward of attention, the products with keys and values; "full": it repeats all of the forward.
    """
    raise NotImplementedError("task 13.10")


def utilization(tokens: float, seconds: float, flops_per_token: float, gpus: int, peak: float) -> float:
    """MFU or HFU of a step that takes ``seconds`` for ``tokens`` tokens; ``peak``: FLOP/s of one GPU."""
    raise NotImplementedError("task 13.10")


def corrected_mfu(claimed: float, claimed_peak: float, dense_peak: float) -> float:
    """The MFU of a run whose authors divided by another peak, such as one for sparse matrices."""
    raise NotImplementedError("task 13.10")


def step_mfu(products: float, communication: float, hidden: float, other: float, efficiency: float) -> float:
    """The MFU of a step without recomputation, from where its time goes.

    Matrix products take ``products`` seconds and reach a share ``efficiency`` of the peak. Communication takes
    ``communication`` seconds, of which a share ``hidden`` runs at the same time as the products and the rest after
    them. All else takes ``other`` seconds.
    """
    raise NotImplementedError("task 13.10")
