"""Chapter 3: collectives, from sends and receives alone.

Every function here is one rank's part; all ranks of ``group`` call it together. You may use what is imported below,
NumPy, and the functions that you write here. ``minidist check 3`` judges, ``minidist check --hint 3.4`` helps.

The functions of tasks 3.2 to 3.7 have the names and arguments of minidist's own, so the library can train on them:

    minidist train --dp 4 --algorithm ring --impl exercises
"""

import numpy as np

from minidist import ProcessGroup, irecv, isend, recv, send, sendrecv


def chunks_of(flat: np.ndarray, parts: int) -> list[np.ndarray]:
    """Given: ``flat`` cut into ``parts`` views, the first ones longer by one element where it does not divide."""
    return np.array_split(flat, parts)


# 3.1  Worksheet: what a collective costs
#
# The alpha-beta model: a message of n bytes takes alpha + beta * n seconds. A rank can send one message and receive
# another at the same time. Everything below is for N ranks and a buffer of ``nbytes`` bytes (call it M).


def naive_all_reduce_seconds(ranks: int, nbytes: float, alpha: float, beta: float) -> float:
    """All ranks send their whole buffer to rank 0, one after the other; then rank 0 sends the sum to each in turn."""
    # >>> 3.1
    return 2 * (ranks - 1) * (alpha + beta * nbytes)
    # <<<


def tree_all_reduce_seconds(ranks: int, nbytes: float, alpha: float, beta: float) -> float:
    """Up a binomial tree and down again: the whole buffer in every step, 2 ceil(log2 N) steps."""
    # >>> 3.1
    steps = 2 * int(np.ceil(np.log2(ranks)))
    return steps * (alpha + beta * nbytes)
    # <<<


def ring_all_reduce_seconds(ranks: int, nbytes: float, alpha: float, beta: float) -> float:
    """N-1 steps of reduce-scatter and N-1 of all-gather, each with one N-th of the buffer."""
    # >>> 3.1
    return 2 * (ranks - 1) * (alpha + beta * nbytes / ranks)
    # <<<


def crossover_bytes(ranks: int, alpha: float, beta: float) -> float:
    """The size of the buffer, in bytes, at which tree and ring take the same time, for N = 4 and more.

    Smaller buffers are faster on the tree (fewer steps), larger ones on the ring (fewer bytes).
    """
    # >>> 3.1
    tree_steps, ring_steps = 2 * int(np.ceil(np.log2(ranks))), 2 * (ranks - 1)
    # tree_steps * (alpha + beta * M) = ring_steps * (alpha + beta * M / ranks), solved for M
    return (ring_steps - tree_steps) * alpha / (beta * (tree_steps - ring_steps / ranks))
    # <<<


def broadcast_tree(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """3.2  Overwrite ``flat`` on every rank with rank ``src``'s, along a binomial tree.

    In each step everybody who has the array sends it to one rank that has not: first 1 rank has it, then 2, then 4.
    It helps to count from the source: a rank's *place* is how far it stands behind ``src``, going round.

    Args:
        flat: a flat array of the same size and dtype on all ranks; received in place.
        src: the rank whose array it is.
        group: the ranks; ``group.rank`` is this one, ``group.size`` their number N (any number).

    Cost: ceil(log2 N) steps; each rank but the source receives the array once, and the source sends it that many times.
    """
    # >>> 3.2
    place = (group.rank - src) % group.size  # the source stands at place 0
    distance = 1  # places below it have the array
    while distance < group.size:
        if place < distance and place + distance < group.size:
            send(flat, (group.rank + distance) % group.size, group)
        elif distance <= place < 2 * distance:
            recv(flat, (group.rank - distance) % group.size, group)
        distance *= 2
    # <<<


def all_reduce_naive(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """3.3  Overwrite ``flat`` on every rank with the combination of all ranks', by way of rank 0.

    Everybody sends to rank 0, which combines; then rank 0 sends the result to everybody.

    Args:
        flat: a flat array of the same size and dtype on all ranks, changed in place.
        combine: how two arrays are combined: ``combine(mine, arrived, out=mine)``. ``np.add`` for a sum.
        group: the ranks.

    Cost: rank 0 sends and receives N-1 whole buffers, the others one each. Every message goes to or from rank 0.
    """
    # >>> 3.3
    if group.rank == 0:
        arrived = np.empty_like(flat)
        for rank in range(1, group.size):
            recv(arrived, rank, group)
            combine(flat, arrived, out=flat)
        for rank in range(1, group.size):
            send(flat, rank, group)
    else:
        send(flat, 0, group)
        recv(flat, 0, group)
    # <<<


def reduce_scatter_ring(chunks: list[np.ndarray], combine: np.ufunc, group: ProcessGroup) -> None:
    """3.4  Leave in ``chunks[group.rank]`` the combination of all ranks' chunks of that number.

    A partial sum of each chunk travels once round the ring, to the right, and every rank adds its own part as it
    passes. Chunk c ends at rank c, so it has to start at the right neighbour of rank c. What is in the other chunks
    afterwards does not matter: they are half-way sums.

    Args:
        chunks: N flat arrays; chunk c has the same size on all ranks, but different chunks may differ in size, and
            be empty. Changed in place.
        combine: ``combine(mine, arrived, out=mine)``, such as ``np.add``.
        group: the ranks, N of them.

    Cost: N-1 steps; in each a rank sends one chunk to its right neighbour (rank + 1, going round) while it receives
    another from its left. Beside the chunks there is room for one or two more of them, not for a second buffer.
    """
    # >>> 3.4
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing = chunks[(rank - 1 - step) % size]
        mine = chunks[(rank - 2 - step) % size]
        arrived = np.empty_like(mine)
        sendrecv(outgoing, right, arrived, left, group)
        combine(mine, arrived, out=mine)
    # <<<


def all_gather_ring(chunks: list[np.ndarray], group: ProcessGroup) -> None:
    """3.5  Before it, a rank has ``chunks[group.rank]``; after it, every rank has all of them.

    Each chunk travels once round the ring, to the right: what came in the last step goes out in the next.

    Args:
        chunks: N flat arrays; chunk c has the same size on all ranks, but different chunks may differ in size, and be
            empty. Changed in place, all but ``chunks[group.rank]``.
        group: the ranks, N of them.

    Cost: N-1 steps; in each a rank sends one chunk to its right neighbour while it receives another from its left,
    straight into its place.
    """
    # >>> 3.5
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing = chunks[(rank - step) % size]
        incoming = chunks[(rank - 1 - step) % size]
        sendrecv(outgoing, right, incoming, left, group)
    # <<<


def all_reduce_ring(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """3.6  Overwrite ``flat`` on every rank with the combination of all ranks', round a ring.

    You have both halves of it already.

    Args:
        flat: a flat array of the same size and dtype on all ranks, of any size, changed in place.
        combine: ``combine(mine, arrived, out=mine)``, such as ``np.add``.
        group: the ranks, N of them.

    Cost: 2 (N-1) steps; each rank sends 2 (N-1)/N of the buffer, to its right neighbour only.
    """
    # >>> 3.6
    chunks = chunks_of(flat, group.size)
    reduce_scatter_ring(chunks, combine, group)
    all_gather_ring(chunks, group)
    # <<<


def all_to_all_pairwise(outgoing: list[np.ndarray], incoming: list[np.ndarray], group: ProcessGroup) -> None:
    """3.7  What is ``outgoing[r]`` here becomes ``incoming[this rank]`` on rank r.

    In step i a rank sends to the one i places to its right and receives from the one i places to its left, so that
    in each step every rank sends one message and gets one. Its own piece it copies.

    Args:
        outgoing: N flat arrays, one for each rank. Sizes may differ from pair to pair.
        incoming: N flat arrays, of the sizes of what will come. Overwritten.
        group: the ranks, N of them.

    Cost: N-1 steps, one message to each other rank.
    """
    # >>> 3.7
    size, rank = group.size, group.rank
    incoming[rank][:] = outgoing[rank]
    for step in range(1, size):
        right, left = (rank + step) % size, (rank - step) % size
        sendrecv(outgoing[right], right, incoming[left], left, group)
    # <<<


def global_max(values: np.ndarray, group: ProcessGroup) -> np.ndarray:
    """3.8  Debugging: the greatest of all ranks' values, element by element, on every rank.

    A running maximum travels round the ring, from rank 0 to the last, and the result goes round once more. The people
    who wrote this tested it with 2 ranks, and it went into production. With 3 ranks some of them now and then see a
    maximum that is too small. Find out why, and mend it; N-1 steps each way round are enough.

    Args:
        values: a flat array of the same size and dtype on all ranks; not changed.
        group: the ranks, N of them.

    Returns:
        A new array with the maxima, the same on every rank.
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
    # >>> 3.8
    if group.rank < group.size - 1:
        recv(best, left, group)
    if group.rank != group.size - 2:
        send(best, right, group)
    # === given to the learner
    # if group.rank == 0:
    #     recv(best, left, group)
    # if group.rank == group.size - 1:
    #     send(best, right, group)
    # <<<
    return best
