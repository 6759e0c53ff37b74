"""The collectives of comm/algorithms.py, each with one injected bug that neither hangs nor crashes.

Each bug does harm from two ranks on. A chunk sent in place of one of another length is cut off or repeated.
"""

import numpy as np

from minidist.comm.algorithms import SEGMENT_BYTES
from minidist.comm.algorithms import all_gather_ring as right_all_gather_ring
from minidist.comm.algorithms import all_reduce_naive as right_all_reduce_naive
from minidist.comm.algorithms import broadcast_naive as right_broadcast_naive
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import recv, send, sendrecv


def broadcast_tree(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """Broadcast along a tree, but one rank sends zeros: the first to pass the array on, or the source if none does."""
    zeros = np.zeros_like(flat)
    place, distance = (group.rank - src) % group.size, 1
    bad = place == (1 if group.size > 3 else 0)
    while distance < group.size:
        if place < distance and place + distance < group.size:
            send(zeros if bad else flat, (group.rank + distance) % group.size, group)
        elif distance <= place < 2 * distance:
            recv(flat, (group.rank - distance) % group.size, group)
        distance *= 2


def broadcast_naive(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """Broadcast from the source to each rank, but the source sends zeros."""
    right_broadcast_naive(np.zeros_like(flat) if group.rank == src else flat, src, group)


def broadcast_ring(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """Broadcast along a ring, but the source's right neighbour passes zeros on; of two ranks, the source sends them."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    bad = (group.rank - src) % group.size == (1 if group.size > 2 else 0)
    for piece in np.array_split(flat, max(1, -(-flat.nbytes // SEGMENT_BYTES))):
        if group.rank != src:
            recv(piece, left, group)
        if right != src:
            send(np.zeros_like(piece) if bad else piece, right, group)


def all_reduce_ring(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """All-reduce in a ring, but rank 1 sends the chunks of its first two steps in the wrong order."""
    chunks, size, rank = np.array_split(flat, group.size), group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        wrong = 1 - step if rank == 1 and step < 2 else step
        expected = chunks[(rank - 1 - step) % size]
        outgoing = np.resize(chunks[(rank - 1 - wrong) % size], len(expected))
        sendrecv(outgoing, right, chunks[(rank - 2 - step) % size], left, group, combine)
    right_all_gather_ring(chunks, group)


def all_reduce_naive(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """All-reduce through one rank, but rank 1 sends its first two chunks in each other's place."""
    if group.rank == 1:
        first, second, *others = np.array_split(flat, group.size)
        moved = np.concatenate([np.resize(second, len(first)), np.resize(first, len(second)), *others])
        flat[:] = moved
    right_all_reduce_naive(flat, combine, group)


def all_reduce_halving_doubling(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """All-reduce by halving and doubling on a power of two of ranks, but rank 1 first sends the half that it keeps."""
    cuts = np.cumsum([0] + [len(chunk) for chunk in np.array_split(flat, group.size)])  # (N + 1,)
    low, high = 0, group.size
    swaps = []
    while high - low > 1:
        middle, distance = (low + high) // 2, (high - low) // 2
        halves = (low, middle), (middle, high)
        keep, give = halves if group.rank < middle else halves[::-1]
        partner = group.rank + distance if group.rank < middle else group.rank - distance
        kept, given = (flat[cuts[half[0]] : cuts[half[1]]] for half in (keep, give))
        outgoing = np.resize(kept, len(given)) if group.rank == 1 and not swaps else given
        sendrecv(outgoing, partner, kept, partner, group, combine)
        swaps.append((partner, kept, given))
        low, high = keep
    for partner, kept, given in reversed(swaps):
        sendrecv(kept, partner, given, partner, group)


def reduce_scatter_ring(chunks: list[np.ndarray], combine: np.ufunc, group: ProcessGroup) -> None:
    """Reduce-scatter in a ring, but rank 1 forgets to add in the last step."""
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        forgets = rank == 1 and step == size - 2
        outgoing, incoming = chunks[(rank - 1 - step) % size], chunks[(rank - 2 - step) % size]
        sendrecv(outgoing, right, incoming, left, group, None if forgets else combine)


def all_gather_ring(chunks: list[np.ndarray], group: ProcessGroup) -> None:
    """All-gather in a ring, but in the last step rank 1 sends the previous chunk again (with two ranks: zeros)."""
    size, rank = group.size, group.rank
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing, incoming = chunks[(rank - step) % size], chunks[(rank - 1 - step) % size]
        if rank == 1 and step == size - 2:
            again = chunks[(rank - step + 1) % size] if step else np.zeros_like(outgoing)
            outgoing = np.resize(again, len(outgoing))
        sendrecv(outgoing, right, incoming, left, group)


def all_to_all_pairwise(outgoing: list[np.ndarray], incoming: list[np.ndarray], group: ProcessGroup) -> None:
    """Exchange chunks in pairs, but rank 0 swaps those for ranks 1 and 2 (with two ranks: for 1 and itself)."""
    size, rank = group.size, group.rank
    if rank == 0:
        outgoing = list(outgoing)
        outgoing[1], outgoing[2 % size] = outgoing[2 % size], outgoing[1]
    incoming[rank][:] = outgoing[rank]
    for step in range(1, size):
        right, left = (rank + step) % size, (rank - step) % size
        sendrecv(outgoing[right], right, incoming[left], left, group)
