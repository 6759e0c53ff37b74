"""Chapter 3: collectives, built from sends and receives.

Every function here is the part of one rank; all ranks of ``group`` call it together. You may use what is imported
below, NumPy, and the functions that you write here. ``minidist check 3`` grades this file,
``minidist check --hint 3.3`` gives a hint.

The functions of tasks 3.1 to 3.5 and 3.8 have the names and arguments of minidist's own, so the library can train with
them:

    minidist train --dp 4 --algorithm ring --impl exercises
"""

import numpy as np

from minidist import ProcessGroup, irecv, isend, recv, send, sendrecv


def chunks_of(flat: np.ndarray, parts: int) -> list[np.ndarray]:
    """Given: ``flat`` cut into ``parts`` views; if the size is not divisible, the first ones have one element more."""
    return np.array_split(flat, parts)


def broadcast_tree(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """3.1  Overwrite ``flat`` on every rank with that of rank ``src``, along a binomial tree.

    In each step every rank that has the array sends it to one that does not: first 1 rank has it, then 2, then 4.
    It helps to count from the source: the *place* of a rank is its distance from ``src`` around the ring.

    Args:
        flat: a flat array of the same size and dtype on all ranks; overwritten in place.
        src: the rank whose array is sent.
        group: N ranks for any N; ``group.rank`` is this one, ``group.size`` is N.

    Cost: ceil(log2 N) steps. Every rank except the source receives the array once; the source sends it once per step.
    """
    raise NotImplementedError("task 3.1")


def all_reduce_naive(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """3.2  Overwrite ``flat`` on every rank with the combination of all ranks' arrays, through rank 0.

    Every rank sends to rank 0, which combines the arrays; then rank 0 sends the result to every rank.

    Args:
        flat: a flat array of the same size and dtype on all ranks, changed in place.
        combine: combines two arrays: ``combine(mine, arrived, out=mine)``; ``np.add`` for a sum.
        group: the ranks.

    Cost: rank 0 sends and receives N-1 whole buffers, each other rank one. Every message goes to or from rank 0.
    """
    raise NotImplementedError("task 3.2")


def reduce_scatter_ring(chunks: list[np.ndarray], combine: np.ufunc, group: ProcessGroup) -> None:
    """3.3  Leave in ``chunks[group.rank]`` the combination of all ranks' chunks with that index.

    A partial sum of each chunk travels once around the ring, to the right, and every rank adds its own part as it
    passes. Chunk c ends at rank c, so it starts at the right neighbour of rank c. The other chunks may end with any
    content: they are partial sums.

    Args:
        chunks: N flat arrays. Chunk c has the same size on all ranks; different chunks may differ in size and may be
            empty. Changed in place.
        combine: ``combine(mine, arrived, out=mine)``, such as ``np.add``.
        group: N ranks.

    Cost: N-1 steps. In each, a rank sends one chunk to its right neighbour, (rank + 1) % N, while it receives another
    from its left. Extra memory for one or two chunks, not for a second buffer.
    """
    raise NotImplementedError("task 3.3")


def all_gather_ring(chunks: list[np.ndarray], group: ProcessGroup) -> None:
    """3.4  Start with ``chunks[group.rank]`` on each rank; end with all chunks on every rank.

    Each chunk travels once around the ring, to the right: a rank sends what it received in the previous step.

    Args:
        chunks: N flat arrays. Chunk c has the same size on all ranks; different chunks may differ in size and may be
            empty. All except ``chunks[group.rank]`` are overwritten in place.
        group: N ranks.

    Cost: N-1 steps. In each, a rank sends one chunk to its right neighbour while it receives another from its left,
    directly into its place.
    """
    raise NotImplementedError("task 3.4")


def all_reduce_ring(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """3.5  Overwrite ``flat`` on every rank with the combination of all ranks' arrays, around a ring.

    You have already written both halves.

    Args:
        flat: a flat array of any size, the same size and dtype on all ranks; changed in place.
        combine: ``combine(mine, arrived, out=mine)``, such as ``np.add``.
        group: N ranks.

    Cost: 2 (N-1) steps. Each rank sends 2 (N-1)/N of the buffer, only to its right neighbour.
    """
    raise NotImplementedError("task 3.5")


def global_max(values: np.ndarray, group: ProcessGroup) -> np.ndarray:
    """3.6  Debugging: the elementwise maximum of all ranks' values, on every rank.

    A running maximum travels around the ring from rank 0 to the last, and the result travels around once more. The
    authors tested this with 2 ranks, and it went into production. With 3 ranks, some of them occasionally see a maximum
    that is too small. Find out why, and fix it; N-1 steps for each of the two rounds are enough.

    Args:
        values: a flat array of the same size and dtype on all ranks; not changed.
        group: N ranks.

    Returns:
        A new array of the same dtype with the maxima, the same on every rank.
    """
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    best = values.copy()
    arrived = np.empty_like(best)
    if group.size == 1:
        return best
    # first round: 0 -> 1 -> ... -> N-1
    if group.rank > 0:
        recv(arrived, left, group)
        np.maximum(best, arrived, out=best)
    if group.rank < group.size - 1:
        send(best, right, group)
    # second round: N-1 -> 0 -> ... -> N-2
    if group.rank == 0:
        recv(best, left, group)
    if group.rank == group.size - 1:
        send(best, right, group)
    return best


# 3.7  Worksheet: what a collective costs
#
# The alpha-beta model: a message of n bytes takes alpha + beta * n seconds. A rank can send one message and receive
# another at the same time. Everything below is for N ranks and a buffer of ``nbytes`` bytes (call it M).


def naive_all_reduce_seconds(ranks: int, nbytes: float, alpha: float, beta: float) -> float:
    """Each rank in turn sends its whole buffer to rank 0; then rank 0 sends the sum to each rank in turn."""
    raise NotImplementedError("task 3.7")


def tree_all_reduce_seconds(ranks: int, nbytes: float, alpha: float, beta: float) -> float:
    """Up a binomial tree and down again: 2 ceil(log2 N) steps, the whole buffer in each."""
    raise NotImplementedError("task 3.7")


def ring_all_reduce_seconds(ranks: int, nbytes: float, alpha: float, beta: float) -> float:
    """N-1 steps of reduce-scatter and N-1 of all-gather, 1/N of the buffer in each."""
    raise NotImplementedError("task 3.7")


def crossover_bytes(ranks: int, alpha: float, beta: float) -> float:
    """The buffer size in bytes at which tree and ring take the same time, for N >= 4.

    Smaller buffers are faster on the tree (fewer steps), larger ones on the ring (fewer bytes).
    """
    raise NotImplementedError("task 3.7")


def all_to_all_pairwise(outgoing: list[np.ndarray], incoming: list[np.ndarray], group: ProcessGroup) -> None:
    """3.8  Send ``outgoing[r]`` to rank r, where it becomes ``incoming[this rank]``.

    In step i a rank sends to the rank i places to its right and receives from the rank i places to its left. So every
    rank sends one message and receives one in each step. It copies its own piece.

    Args:
        outgoing: N flat arrays of one dtype, one per rank; not changed. Sizes may differ from pair to pair.
        incoming: N flat arrays with the sizes of what will arrive. Overwritten.
        group: N ranks.

    Cost: N-1 steps; one message to each other rank.
    """
    raise NotImplementedError("task 3.8")
