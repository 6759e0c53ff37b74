"""Two binary trees over the same ranks, each of which carries half of the buffer.

In a pipelined binary tree the inner ranks receive from two children and send to one parent, and the leaves, half of all
ranks, only send. So every other link idles, and with two trees none does, if the leaves of the one are inner in the
other. An all-reduce then sends hardly more over each link than a ring, but the steps grow with log2 N and not with N.

Sanders, Speck and Träff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan" (2009). NCCL has used
such trees between nodes since version 2.4; these are its (src/graph/trees.cc). Simplified: NCCL has one tree vertex for
each node and a chain inside it, and picks pieces by its own tuning.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from minidist.comm.algorithms import SEGMENT_BYTES
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import isend, recv, recv_reduce
from minidist.overrides import overridable

MOST_PIECES = 32  # of a half: more would cost more latency than they save
Parents = list[int | None]  # of each rank; None for the root


def binary_tree(size: int) -> Parents:
    """The parent of each rank in a binary tree of depth ceil(log2 N) whose leaves are the odd ranks.

    The lowest bit that is set in a rank says how high it is: 4 is between 2 and 6, and these between 1, 3, 5 and 7. The
    parent is the neighbour one bit higher, or the lower neighbour where that one is not there. Rank 0 is the root, with
    one child::

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
    """The parent of each rank in two trees: no rank is inner in both, except rank 0 if N is odd and larger than 1.

    The second tree is the first, mirrored if N is even, so that rank r takes the place of N-1-r, and otherwise shifted
    by one, so that it takes the place of r-1: either swaps even places, the inner ones, with odd ones. With an odd N
    there is one inner place more than leaves, and rank 0, the first tree's root, takes the last in the second.
    """
    first = binary_tree(size)
    names = [size - 1 - place if size % 2 == 0 else (place + 1) % size for place in range(size)]  # the rank at a place
    second: Parents = [None] * size
    for place, parent in enumerate(first):
        second[names[place]] = None if parent is None else names[parent]
    return first, second


def trees_below(src: int, size: int) -> tuple[Parents, Parents]:
    """Return both trees of a broadcast: over all ranks but ``src``, which is the parent of both roots."""
    others = [(src + i) % size for i in range(1, size)]
    trees: tuple[Parents, Parents] = [None] * size, [None] * size
    for parents, tree in zip(trees, double_tree(size - 1), strict=True):
        for rank, parent in zip(others, tree, strict=True):
            parents[rank] = src if parent is None else others[parent]
    return trees


def children_of(parents: Parents, rank: int) -> list[int]:
    """The children of a rank, in order."""
    return [child for child, parent in enumerate(parents) if parent == rank]


def all_reduce_double_tree(flat: np.ndarray, combine: np.ufunc, group: ProcessGroup) -> None:
    """Up both trees at once, each with half of the buffer in pieces, then down again.

    All ranks together send 2 (N-1) M, and none sends or receives more than 2 M.
    """
    lanes = lanes_of(flat, double_tree(group.size), group.rank)
    up(lanes, combine, group)
    down(lanes, group)


def broadcast_double_tree(flat: np.ndarray, src: int, group: ProcessGroup) -> None:
    """The source gives half of its array to the root of each of two trees over the other ranks, and these pass it down.

    All ranks together send (N-1) M, and none sends or receives more than M.
    """
    down(lanes_of(flat, trees_below(src, group.size), group.rank), group)


@dataclass(frozen=True)
class Lane:
    """One tree, from where a rank is in it: half of the buffer in pieces comes and goes along it."""

    tag: int  # tells the trees' messages apart
    pieces: list[np.ndarray]
    parent: int | None
    children: list[int]

    @property
    def level(self) -> int:
        """0 for a leaf, 1 for an inner rank, 2 for a root."""
        return 2 if self.parent is None else int(bool(self.children))


def lanes_of(flat: np.ndarray, trees: Sequence[Parents], rank: int) -> list[Lane]:
    """Both trees, each with its half of the buffer, from where a rank is in them."""
    count = piece_count(flat.nbytes)
    return [
        Lane(tag, np.array_split(half, count), parents[rank], children_of(parents, rank))
        for tag, (half, parents) in enumerate(zip(np.array_split(flat, 2), trees, strict=True))
    ]


def piece_count(nbytes: float) -> int:
    """Return the number of pieces in which each half of a buffer travels."""
    return int(min(MOST_PIECES, max(1, -(-nbytes // (2 * SEGMENT_BYTES)))))


def up(lanes: Sequence[Lane], combine: np.ufunc, group: ProcessGroup) -> None:
    """Combine all ranks' halves at the roots. Elsewhere partial results stay behind.

    A leaf waits for nobody, so a rank is ahead in the tree in which it is one: else its parent there would wait for
    what it waits for in the other tree.
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
    """Pass the roots' halves on to all ranks. Nobody waits for a leaf, so a rank is behind where it is one."""
    works, depth = [], group.size.bit_length()
    for lane, piece in in_turns(lanes, [depth * (2 - lane.level) for lane in lanes]):
        if lane.parent is not None:
            recv(piece, lane.parent, group, lane.tag)
        works += [isend(piece, child, group, lane.tag) for child in lane.children]
    for work in works:
        work.wait()


def in_turns(lanes: Sequence[Lane], delays: Sequence[int]) -> Iterator[tuple[Lane, np.ndarray]]:
    """The pieces of all lanes, one of each in every turn; a lane joins in after its delay, in turns."""
    for turn in range(len(lanes[0].pieces) + max(delays)):
        for lane, delay in zip(lanes, delays, strict=True):
            if 0 <= turn - delay < len(lane.pieces):
                yield lane, lane.pieces[turn - delay]
