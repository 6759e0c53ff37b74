"""The algorithms of every collective, side by side, for ranks whose links are all alike.

two_level.py has the algorithms for several nodes, double_tree.py those on two trees; collectives.py names them all.

Each is the textbook's program for one rank. It only sends to and receives from other ranks of the group, so it runs on
any transport and any group. Arrays are flat and C-contiguous, N is the number of ranks, M the bytes of the whole
buffer. With a latency of alpha seconds per message and beta seconds per byte, an algorithm takes about
steps x alpha + bytes x beta (the model of Hockney, 1994; Thakur, Rabenseifner and Gropp, "Optimization of Collective
Communication Operations in MPICH", 2005, give the costs of most of these).

Some of them are overridable: see overrides.py.

A ``combine`` is a ufunc, ``np.add`` for a sum: ``sendrecv(..., combine=np.add)`` adds the message to ``incoming``.
"""

import numpy as np

from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import irecv, isend, recv, recv_reduce, send, sendrecv
from minidist.overrides import overridable

SEGMENT_BYTES = 128 << 10  # size of the pieces of a pipelined broadcast


def exchange(outgoing: dict[int, np.ndarray], incoming: dict[int, np.ndarray], group: ProcessGroup) -> None:
    """Send ``outgoing[r]`` to each other rank r, and receive ``incoming[r]`` from it, all at once."""
    works = [irecv(array, rank, group) for rank, array in incoming.items() if rank != group.rank]
    works += [isend(array, rank, group) for rank, array in outgoing.items() if rank != group.rank]
    for work in works:
        work.wait()


def other_ranks(group: ProcessGroup) -> list[int]:
    """Return the other ranks, the right neighbour first. In this order no two ranks send to the same one at a time."""
    return [(group.rank + i) % group.size for i in range(1, group.size)]


# ── broadcast: one rank's array on every rank ────────────────────────────────────────────────────────────────────────


def broadcast_naive(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """Send from the source to each rank in turn: (N-1) M in N-1 steps, all of it from the source."""
    if group.rank == src:
        for rank in range(group.size):
            if rank != src:
                send(flat, rank, group)
    else:
        recv(flat, src, group)


@overridable
def broadcast_tree(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """Broadcast along a binomial tree: ranks that have the array pass it on, so each step doubles their number.

    It takes ceil(log2 N) steps. All ranks together send (N-1) M; the source sends ceil(log2 N) M.
    """
    place = (group.rank - src) % group.size  # the source is at place 0
    distance = 1
    while distance < group.size:
        if place < distance and place + distance < group.size:
            send(flat, (group.rank + distance) % group.size, group)
        elif distance <= place < 2 * distance:
            recv(flat, (group.rank - distance) % group.size, group)
        distance *= 2


def broadcast_ring(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """Broadcast along a pipelined ring: a rank passes one piece of the array on while the next one arrives.

    Every rank except the last sends M, only to its right neighbour, in N-2 + pieces steps: for a large array the time
    barely depends on N.
    """
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    in_flight = []
    for piece in np.array_split(flat, max(1, -(-flat.nbytes // SEGMENT_BYTES))):
        if group.rank != src:
            recv(piece, left, group)
        if right != src:
            in_flight.append(isend(piece, right, group))
    for work in in_flight:
        work.wait()


# ── reduce: the combination of all arrays on one rank ────────────────────────────────────────────────────────────────


def reduce_naive(flat: np.ndarray, dst: int, combine: np.ufunc, group: ProcessGroup) -> None:
    """Send every rank's array, M bytes, to the destination, which combines them into its own in rank order."""
    if group.rank == dst:
        for rank in range(group.size):
            if rank != dst:
                recv_reduce(flat, rank, group, combine)
    else:
        send(flat, dst, group)


def reduce_tree(flat: np.ndarray, dst: int, combine: np.ufunc, group: ProcessGroup) -> None:
    """Reduce along a binomial tree, the broadcast in reverse: ceil(log2 N) steps, and each rank but ``dst`` sends M."""
    place = (group.rank - dst) % group.size
    partial = flat if place == 0 else flat.copy()  # a partial sum must not appear in the caller's array
    distance = 1
    while distance < group.size:
        if place & distance:
            send(partial, (group.rank - distance) % group.size, group)
            return
        if place + distance < group.size:
            recv_reduce(partial, (group.rank + distance) % group.size, group, combine)
        distance *= 2


# ── reduce-scatter: the combination of all arrays, one chunk of it on each rank ──────────────────────────────────────


@overridable
def reduce_scatter_ring(chunks: list[np.ndarray], combine: np.ufunc, group: ProcessGroup) -> None:
    """Combine all ranks' chunks number ``rank`` into ``chunks[rank]``; the other chunks end up as partial sums.

    A partial sum of each chunk travels around the ring once, and every rank adds its own chunk as it passes. Chunk c
    starts at the right neighbour of rank c, so it ends at rank c. Each rank sends (N-1)/N M, only to its right
    neighbour, in N-1 steps (Patarasuk and Yuan, "Bandwidth Optimal All-reduce Algorithms", 2009).
    """
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing = chunks[(rank - 1 - step) % size]
        incoming = chunks[(rank - 2 - step) % size]
        sendrecv(outgoing, right, incoming, left, group, combine)


def reduce_scatter_direct(chunks: list[np.ndarray], combine: np.ufunc, group: ProcessGroup) -> None:
    """Send each chunk directly to the rank that keeps it, which combines all ranks' chunks in rank order.

    Each rank sends (N-1)/N M, in one step of N-1 messages.
    """
    mine = chunks[group.rank]
    arrived = {rank: np.empty_like(mine) for rank in other_ranks(group)}
    exchange({rank: chunks[rank] for rank in other_ranks(group)}, arrived, group)
    arrived[group.rank] = mine.copy()
    mine[:] = arrived[0]
    for rank in range(1, group.size):
        combine(mine, arrived[rank], out=mine)


# ── all-gather: every rank's chunk on every rank ─────────────────────────────────────────────────────────────────────


@overridable
def all_gather_ring(chunks: list[np.ndarray], group: ProcessGroup) -> None:
    """Fill in all ``chunks``; at first a rank has only ``chunks[rank]``. Each chunk travels around the ring once.

    Each rank sends (N-1)/N M, only to its right neighbour, in N-1 steps.
    """
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing = chunks[(rank - step) % size]
        incoming = chunks[(rank - 1 - step) % size]
        sendrecv(outgoing, right, incoming, left, group)


def all_gather_direct(chunks: list[np.ndarray], group: ProcessGroup) -> None:
    """Send each rank's chunk directly to every other rank: (N-1)/N M per rank, in one step of N-1 messages."""
    others = other_ranks(group)
    exchange(dict.fromkeys(others, chunks[group.rank]), {rank: chunks[rank] for rank in others}, group)


# ── all-reduce: the combination of all arrays on every rank ──────────────────────────────────────────────────────────


@overridable
def all_reduce_naive(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """Send all arrays to rank 0, which combines them and sends the result to every rank.

    Rank 0 sends and receives (N-1) M, every other rank M: rank 0's link is the bottleneck, and its load grows with N.
    """
    reduce_naive(flat, 0, combine, group)
    broadcast_naive(flat, 0, group)


def all_reduce_tree(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """Reduce up a binomial tree to rank 0, then broadcast down: 2 ceil(log2 N) steps, good for small messages.

    All ranks together send 2 (N-1) M, of which rank 0 sends ceil(log2 N) M.
    """
    reduce_tree(flat, 0, combine, group)
    broadcast_tree(flat, 0, group)


@overridable
def all_reduce_ring(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """Run a ring reduce-scatter, then a ring all-gather.

    Each rank sends 2 (N-1)/N M, only to its right neighbour, in 2 (N-1) steps: the bytes barely grow with N, but the
    steps do. This is NCCL's ring; Baidu's all-reduce and Horovod made it popular for deep learning (2017).
    """
    chunks = np.array_split(flat, group.size)
    reduce_scatter_ring(chunks, combine, group)
    all_gather_ring(chunks, group)


def all_reduce_two_shot(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """Run a direct reduce-scatter, then a direct all-gather: the ring's bytes in 2 steps, if all ranks are linked.

    Each rank sends 2 (N-1)/N M. Inference engines on NVLink call it two-shot (TensorRT-LLM, vLLM).
    """
    chunks = np.array_split(flat, group.size)
    reduce_scatter_direct(chunks, combine, group)
    all_gather_direct(chunks, group)


def all_reduce_direct(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """Send each rank's whole array to every other rank; all combine in rank order, so all get the same bits.

    Each rank sends (N-1) M in one step: the lowest latency, but far too many bytes for a large message. Inference
    engines call it one-shot.
    """
    everything = np.empty((group.size, flat.size), flat.dtype)  # (N, elements)
    everything[group.rank] = flat
    all_gather_direct(list(everything), group)
    flat[:] = everything[0]
    for contribution in everything[1:]:
        combine(flat, contribution, out=flat)


def all_reduce_halving_doubling(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """Reduce-scatter by recursive halving, then all-gather by recursive doubling (Rabenseifner, 2004).

    Swap halves of the buffer with a partner half the group away, and combine. Repeat within the half that you keep,
    with a partner half as far away, until 1/N of the buffer is left. Then return the results in reverse order.
    Each rank sends 2 (N-1)/N M in 2 log2 N steps when N is a power of two. Otherwise, with P the largest power of two
    below N, each of the N - P extra ranks first sends its whole buffer to a helper and receives the result from it at
    the end: an extra rank sends M, its helper 2 (P-1)/P M + M.
    """
    power = 1 << (group.size.bit_length() - 1)  # P
    extra = group.size - power
    if group.rank >= power:  # an extra rank: rank r - P is its helper
        send(flat, group.rank - power, group)
        recv(flat, group.rank - power, group)
        return
    if group.rank < extra:
        recv_reduce(flat, group.rank + power, group, combine)

    cuts = np.cumsum([0] + [len(chunk) for chunk in np.array_split(flat, power)])  # (P + 1,)
    low, high = 0, power  # this rank still combines chunks low to high
    swaps = []
    while high - low > 1:
        middle, distance = (low + high) // 2, (high - low) // 2
        halves = (low, middle), (middle, high)
        keep, give = halves if group.rank < middle else halves[::-1]
        partner = group.rank + distance if group.rank < middle else group.rank - distance
        kept, given = (flat[cuts[half[0]] : cuts[half[1]]] for half in (keep, give))
        sendrecv(given, partner, kept, partner, group, combine)
        swaps.append((partner, kept, given))
        low, high = keep
    for partner, kept, given in reversed(swaps):
        sendrecv(kept, partner, given, partner, group)

    if group.rank < extra:
        send(flat, group.rank + power, group)


# ── all-to-all, scatter, gather ──────────────────────────────────────────────────────────────────────────────────────


@overridable
def all_to_all_pairwise(outgoing: list[np.ndarray], incoming: list[np.ndarray], group: ProcessGroup) -> None:
    """Move ``outgoing[r]`` of this rank to ``incoming[this rank]`` of rank r. Sizes may differ from pair to pair.

    In step i a rank sends to the rank i places to its right and receives from the rank i places to its left, so in each
    step every rank sends one message and receives one. Each sends all pieces except its own, in N-1 steps.
    """
    incoming[group.rank][:] = outgoing[group.rank]
    for step in range(1, group.size):
        right, left = (group.rank + step) % group.size, (group.rank - step) % group.size
        sendrecv(outgoing[right], right, incoming[left], left, group)


def scatter_direct(mine: np.ndarray, pieces: list[np.ndarray], src: int, group: ProcessGroup) -> None:
    """Send each rank its piece from the source: N-1 messages of M/N."""
    if group.rank != src:
        recv(mine, src, group)
        return
    exchange(dict(enumerate(pieces)), {}, group)
    mine[:] = pieces[src]  # last: it may be one of the pieces


def gather_direct(mine: np.ndarray, pieces: list[np.ndarray], dst: int, group: ProcessGroup) -> None:
    """Send every rank's piece, M/N bytes, to the destination."""
    if group.rank != dst:
        send(mine, dst, group)
        return
    pieces[dst][:] = mine  # first: it may be one of the pieces
    exchange({}, dict(enumerate(pieces)), group)


BROADCAST = {"naive": broadcast_naive, "tree": broadcast_tree, "ring": broadcast_ring}
REDUCE = {"naive": reduce_naive, "tree": reduce_tree}
REDUCE_SCATTER = {"ring": reduce_scatter_ring, "direct": reduce_scatter_direct}
ALL_GATHER = {"ring": all_gather_ring, "direct": all_gather_direct}
ALL_REDUCE = {
    "naive": all_reduce_naive,
    "tree": all_reduce_tree,
    "ring": all_reduce_ring,
    "two_shot": all_reduce_two_shot,
    "halving_doubling": all_reduce_halving_doubling,
    "direct": all_reduce_direct,
}
ALL_TO_ALL = {"pairwise": all_to_all_pairwise}
SCATTER = {"direct": scatter_direct}
GATHER = {"direct": gather_direct}
