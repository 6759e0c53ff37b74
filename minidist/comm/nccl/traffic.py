"""What the tables count as sent by NCCL: what its ring sends.

NCCL does not tell how many bytes it has moved, and chooses between rings, trees and the switch's own sums by itself.
Its ring is that of algorithms.py: 2 (N-1)/N M for an all-reduce, (N-1)/N M for its halves, each to the right neighbour
(nccl-tests counts the same in doc/PERFORMANCE.md, for its bus bandwidth). What goes from rank to rank directly is
counted as it is.
"""

from collections.abc import Callable

from minidist.comm.group import ProcessGroup


def all_reduce(elements: int, size: int) -> Callable[[int], int]:
    """rank -> elements that it sends: in both halves every chunk but one, as in ``all_reduce_ring``."""

    def chunk(rank: int) -> int:
        return elements // size + (rank % size < elements % size)

    return lambda rank: 2 * elements - chunk(rank) - chunk(rank + 1)


def half(elements: int, size: int) -> Callable[[int], int]:
    """Return how many elements each rank sends in a reduce-scatter or all-gather of ``elements`` in all."""
    return lambda rank: elements // size * (size - 1)


def chain(elements: int, last: int) -> Callable[[int], int]:
    """Return how many elements each rank sends where an array passes along the ring once, up to rank ``last``."""
    return lambda rank: 0 if rank == last else elements


def count_ring(group: ProcessGroup, elements_of: Callable[[int], int], itemsize: int) -> None:
    """Count what this rank sends to its right neighbour and receives from its left one."""
    left, right = (group.rank - 1) % group.size, (group.rank + 1) % group.size
    count_sent(group, right, elements_of(group.rank), itemsize)
    count_received(group, left, elements_of(left), itemsize)


def count_sent(group: ProcessGroup, rank: int, elements: int, itemsize: int) -> None:
    """Count what this rank sends to a rank of the group, within a collective of it."""
    transport, peer = group.transport, group.ranks[rank]
    nbytes = elements * itemsize
    group.sent.nbytes += nbytes
    if transport.nodes[peer] != transport.nodes[transport.rank]:
        group.sent.between_nodes += nbytes
    if elements:
        with transport.lock:
            transport.traffic.count(transport.traffic.sent[peer], nbytes, elements)


def count_received(group: ProcessGroup, rank: int, elements: int, itemsize: int) -> None:
    if elements:
        transport, peer = group.transport, group.ranks[rank]
        with transport.lock:
            transport.traffic.count(transport.traffic.received[peer], elements * itemsize, elements)
