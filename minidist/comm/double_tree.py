"""Two binary trees over the same ranks, each of which carries half of the buffer.

In a pipelined binary tree the inner ranks receive from two children and send to one parent, and the leaves, half of all
ranks, only send. So every other link idles. With two trees none does, if the leaves of one are inner ranks of the
other. An all-reduce then sends hardly more over each link than a ring, but its steps grow with log2 N instead of N.

Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009). NCCL has used
such trees between nodes since version 2.4, and these are built like NCCL's (src/graph/trees.cc). Simplified: NCCL has
one tree vertex for each node and a chain inside it, and picks pieces by its own tuning.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from minidist.comm.algorithms import SEGMENT_BYTES
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import isend, recv, recv_reduce
from minidist.overrides import overridable

MOST_PIECES = 32  # per half of the buffer: more would cost more latency than they save
Parents = list[int | None]  # the parent of each rank; None for the root


def binary_tree(size: int) -> Parents:
    """Return the parent of each rank in a binary tree of depth ceil(log2 N) whose leaves are the odd ranks.

    A rank's lowest set bit is its height in the tree: 4 is above 2 and 6, and these are above 1, 3, 5 and 7. The parent
    is the neighbour one bit higher, or the lower neighbour if that rank does not exist. Rank 0 is the root, with one
    child::

        0---------------8
                 ______/ \\______
                4               12
              /   \\            /
            2       6       10
           / \\     / \\     /  \\
          1   3   5   7   9   11
    """
    parents: Parents = [None] * size
    for rank in range(1, size):
        bit = rank & -rank
        parent = (rank ^ bit) | (bit << 1)
        parents[rank] = parent if parent < size else rank ^ bit
    return parents


@overridable
def double_tree(size: int) -> tuple[Parents, Parents]:
    """Return the parent of each rank in two trees. No rank is inner in both, except rank 0 if N is odd and above 1.

    If N is even, the second tree is the first one mirrored: rank r takes the place of N-1-r. If N is odd, it is shifted
    by one: rank r takes the place of r-1. Either way even places, the inner ones, swap with odd ones. With an odd N
    there is one more inner place than leaves, and rank 0, the first tree's root, takes the last place in the second.
    """
    first = binary_tree(size)
    names = [size - 1 - place if size % 2 == 0 else (place + 1) % size for place in range(size)]  # the rank at a place
    second: Parents = [None] * size
    for place, parent in enumerate(first):
        second[names[place]] = None if parent is None else names[parent]
    return first, second


def trees_below(src: int, size: int) -> tuple[Parents, Parents]:
    """Return both trees of a broadcast. They span all ranks but ``src``, which is the parent of both roots."""
    others = [(src + i) % size for i in range(1, size)]
    trees: tuple[Parents, Parents] = [None] * size, [None] * size
    for parents, tree in zip(trees, double_tree(size - 1), strict=True):
        for rank, parent in zip(others, tree, strict=True):
            parents[rank] = src if parent is None else others[parent]
    return trees


def children_of(parents: Parents, rank: int) -> list[int]:
    """Return the children of a rank, in order."""
    return [child for child, parent in enumerate(parents) if parent == rank]


def all_reduce_double_tree(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """Reduce up both trees at once, each with half of the buffer in pieces, then broadcast down both.

    All ranks together send 2 (N-1) M, and none sends or receives more than 2 M.
    """
    lanes = lanes_of(flat, double_tree(group.size), group.rank)
    up(lanes, combine, group)
    down(lanes, group)


def broadcast_double_tree(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """Send half of the source's array to the root of each of two trees over the other ranks, which pass it down.

    All ranks together send (N-1) M, and none sends or receives more than M.
    """
    down(lanes_of(flat, trees_below(src, group.size), group.rank), group)


@dataclass(frozen=True)
class Lane:
    """One tree as a rank sees it, with the pieces of the half of the buffer that travels along it."""

    tag: int  # tells the trees' messages apart
    pieces: list[np.ndarray]
    parent: int | None
    children: list[int]

    @property
    def level(self) -> int:
        """0 for a leaf, 1 for an inner rank, 2 for a root."""
        return 2 if self.parent is None else int(bool(self.children))


def lanes_of(flat: np.ndarray, trees: Sequence[Parents], rank: int) -> list[Lane]:
    """Return the lanes of a rank: one for each tree, with that tree's half of the buffer."""
    count = piece_count(flat.nbytes)
    return [
        Lane(tag, np.array_split(half, count), parents[rank], children_of(parents, rank))
        for tag, (half, parents) in enumerate(zip(np.array_split(flat, 2), trees, strict=True))
    ]


def piece_count(nbytes: float) -> int:
    """Return the number of pieces in which each half of a buffer travels."""
    return int(min(MOST_PIECES, max(1, -(-nbytes // (2 * SEGMENT_BYTES)))))


def up(lanes: Sequence[Lane], combine: np.ufunc, group: ProcessGroup) -> None:
    """Combine all ranks' halves at the roots. The other ranks keep partial results.

    A leaf waits for nobody, so a rank starts first in the tree in which it is a leaf. Otherwise its parent there would
    wait for whatever the rank waits for in the other tree.
    """
    works, depth = [], group.size.bit_length()
    for lane, piece in in_turns(lanes, [depth * lane.level for lane in lanes]):
        for child in lane.children:
            recv_reduce(piece, child, group, combine, lane.tag)
        if lane.parent is not None:
            works.append(isend(piece, lane.parent, group, lane.tag))
    for work in works:
        work.wait()


def down(lanes: Sequence[Lane], group: ProcessGroup) -> None:
    """Pass the roots' halves down to all ranks. Nobody waits for a leaf, so a rank starts last where it is one."""
    works, depth = [], group.size.bit_length()
    for lane, piece in in_turns(lanes, [depth * (2 - lane.level) for lane in lanes]):
        if lane.parent is not None:
            recv(piece, lane.parent, group, lane.tag)
        works += [isend(piece, child, group, lane.tag) for child in lane.children]
    for work in works:
        work.wait()


def in_turns(lanes: Sequence[Lane], delays: Sequence[int]) -> Iterator[tuple[Lane, np.ndarray]]:
    """Yield the pieces of all lanes in turns, one of each lane per turn; a lane joins in after its delay, in turns."""
    for turn in range(len(lanes[0].pieces) + max(delays)):
        for lane, delay in zip(lanes, delays, strict=True):
            if 0 <= turn - delay < len(lane.pieces):
                yield lane, lane.pieces[turn - delay]
