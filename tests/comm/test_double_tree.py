"""Two trees over the same ranks: their shape, and what ranks send along them."""

from math import ceil, log2

import numpy as np
import pytest

import minidist as md
from minidist.comm.algorithms import SEGMENT_BYTES
from minidist.comm.collectives import ReduceOp
from minidist.comm.nodes.double_tree import MOST_PIECES, children_of, double_tree, piece_count, trees_below

LIMIT = 60  # seconds for one run of a cluster


def depth_of(parents, rank: int) -> int:
    steps = 0
    while parents[rank] is not None:
        rank, steps = parents[rank], steps + 1
        assert steps <= len(parents), "a circle"
    return steps


def inner(parents) -> set[int]:
    return {parent for parent in parents if parent is not None}


@pytest.mark.parametrize("size", range(1, 101))
def test_both_are_binary_trees_over_all_ranks(size):
    for parents in double_tree(size):
        assert len(parents) == size and parents.count(None) == 1
        assert max(depth_of(parents, rank) for rank in range(size)) == ceil(log2(size))
        assert all(len(children_of(parents, rank)) <= 2 for rank in range(size))
        assert len(children_of(parents, parents.index(None))) == min(1, size - 1)


@pytest.mark.parametrize("size", range(1, 101))
def test_a_rank_is_inner_in_one_tree_only(size):
    first, second = map(inner, double_tree(size))
    if size == 1:
        assert first | second == set()
    else:
        assert first | second == set(range(size))  # each carries its share
        assert first & second == ({0} if size % 2 else set())


def test_the_trees_of_nccl():
    """As drawn in NCCL's src/graph/trees.cc, for 12 ranks and for 13."""
    n = None
    assert double_tree(12) == ([n, 2, 4, 2, 8, 6, 4, 6, 0, 10, 8, 10], [1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, n])
    assert double_tree(13) == ([n, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8], [9, n, 3, 5, 3, 9, 7, 5, 7, 1, 11, 0, 11])


@pytest.mark.parametrize("size", range(1, 40))
def test_the_trees_of_a_broadcast(size):
    for src in {0, size // 2, size - 1}:
        for parents in trees_below(src, size):
            assert [rank for rank in range(size) if parents[rank] is None] == [src]
            assert max(depth_of(parents, rank) for rank in range(size)) <= ceil(log2(max(size - 1, 1))) + 1
            assert len(children_of(parents, src)) == min(1, size - 1)


def test_halves_go_in_pieces():
    assert [piece_count(n) for n in (0, 1, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES + 1, 1 << 40)] == [
        1,
        1,
        1,
        2,
        MOST_PIECES,
    ]


def all_reduce_and_broadcast(world, sizes):
    for elements in sizes:
        rows = np.stack([np.arange(elements) % 7 + rank for rank in range(world.size)]).astype(np.float32)
        for op, expected in ((ReduceOp.SUM, rows.sum(axis=0)), (ReduceOp.MIN, rows[0])):
            x = rows[world.rank].copy()
            md.all_reduce(x, op, world, algorithm="double_tree")
            assert np.array_equal(x, expected), (elements, op)
        for src in range(world.size):
            x = rows[world.rank].copy()
            works = [md.broadcast(x, src, world, algorithm="double_tree", async_op=True)]
            works[0].wait()
            assert np.array_equal(x, rows[src]), (elements, src)


@pytest.mark.long
@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, pytest.param(7, marks=pytest.mark.long), 9])
def test_values(ranks, size):
    pieces = 2 * SEGMENT_BYTES // 4  # elements of one pair
    ranks(size).run(all_reduce_and_broadcast, (0, 1, 2, 5, 1001, 2 * pieces, 3 * pieces + 1), timeout=LIMIT)


def test_queues_that_are_smaller_than_a_piece():
    with md.Cluster(5, queue_bytes=1024) as cluster:
        cluster.run(all_reduce_and_broadcast, (100, 2 * SEGMENT_BYTES // 4 + 3), timeout=LIMIT)


M = 4 * 840


def measure(world, collective):
    md.barrier(world)
    before = world.traffic
    if collective == "all_reduce":
        md.all_reduce(np.ones(840, np.float32), group=world, algorithm="double_tree")
    else:
        md.broadcast(np.ones(840, np.float32), 1, world, algorithm="double_tree")
    moved = world.traffic - before
    return moved.sent[:, 0], moved.received[:, 0]


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_what_ranks_send(ranks, size):
    results = ranks(size).run(measure, "all_reduce", timeout=LIMIT)
    trees = double_tree(size)
    for rank, (sent, received) in enumerate(results):
        along = [sum((parents[rank] == peer) + (parents[peer] == rank) for parents in trees) for peer in range(size)]
        assert sent.tolist() == received.tolist() == [M // 2 * count for count in along]
        assert sent.sum() <= 2 * M
    assert sum(sent.sum() for sent, _ in results) == 2 * (size - 1) * M
    results = ranks(size).run(measure, "broadcast", timeout=LIMIT)
    assert [received.sum() for _, received in results] == [0 if rank == 1 else M for rank in range(size)]
    assert results[1][0].sum() == M and all(sent.sum() <= M for sent, _ in results)
