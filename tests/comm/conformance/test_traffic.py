"""What each algorithm sends, against the formula in its docstring, byte for byte."""

from math import ceil, log2

import numpy as np
import pytest

import minidist as md
from minidist.comm import algorithms, tables

ELEMENTS = 840  # divided by every number of ranks from 1 to 8
M = ELEMENTS * 4  # bytes of the whole buffer


def measure(world, call):
    md.place_on_nodes(world, world.size)
    md.barrier(world)
    before = world.traffic
    call(world)
    return world.traffic - before


def sent(ranks, size, call) -> list[np.ndarray]:
    """For each rank, the bytes that it sent to each peer."""
    results = ranks(size).run(measure, call)
    received = np.stack([result.received for result in results])  # (ranks, peers, 3)
    gone = np.stack([result.sent for result in results])
    assert np.array_equal(received, gone.transpose(1, 0, 2))  # what a sent to b, b received from a
    assert (gone[..., 2] * 4 == gone[..., 0]).all()  # float32 elements
    return [result.sent[:, 0] for result in results]


def all_reduce(algorithm):
    return lambda world: md.all_reduce(np.ones(ELEMENTS, np.float32), group=world, algorithm=algorithm)


def right_neighbour_only(bytes_sent: list[np.ndarray]) -> bool:
    size = len(bytes_sent)
    return all(row[(rank + 1) % size] == row.sum() for rank, row in enumerate(bytes_sent))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 7, 8])
def test_ring_all_reduce(ranks, size):
    rows = sent(ranks, size, all_reduce("ring"))
    assert [row.sum() for row in rows] == [2 * (size - 1) * M // size] * size
    assert right_neighbour_only(rows)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_other_all_reduces(ranks, size):
    two_shot = sent(ranks, size, all_reduce("two_shot"))
    assert all(np.count_nonzero(row) == size - 1 for row in two_shot)  # to everybody, unlike the ring
    assert [row.sum() for row in two_shot] == [2 * (size - 1) * M // size] * size
    direct = sent(ranks, size, all_reduce("direct"))
    assert [row.sum() for row in direct] == [(size - 1) * M] * size
    naive = sent(ranks, size, all_reduce("naive"))
    assert [row.sum() for row in naive] == [(size - 1) * M] + [M] * (size - 1)
    tree = sent(ranks, size, all_reduce("tree"))
    assert sum(row.sum() for row in tree) == 2 * (size - 1) * M
    assert tree[0].sum() == ceil(log2(size)) * M


@pytest.mark.parametrize("size", [2, 4, 8])
def test_halving_doubling_on_powers_of_two(ranks, size):
    rows = sent(ranks, size, all_reduce("halving_doubling"))
    assert [row.sum() for row in rows] == [2 * (size - 1) * M // size] * size
    assert [np.count_nonzero(row) for row in rows] == [int(log2(size))] * size  # one partner for each halving


@pytest.mark.parametrize("size", [3, 5, 6, 7])
def test_halving_doubling_elsewhere(ranks, size):
    power = 1 << int(log2(size))
    rows = [row.sum() for row in sent(ranks, size, all_reduce("halving_doubling"))]
    inner = 2 * (power - 1) * M // power
    helpers = size - power
    assert rows == [inner + M] * helpers + [inner] * (power - helpers) + [M] * helpers


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_broadcasts(ranks, size):
    def broadcast(algorithm):
        return lambda world: md.broadcast(np.ones(ELEMENTS, np.float32), 1, group=world, algorithm=algorithm)

    naive = sent(ranks, size, broadcast("naive"))
    assert [row.sum() for row in naive] == [(size - 1) * M if rank == 1 else 0 for rank in range(size)]
    tree = sent(ranks, size, broadcast("tree"))
    assert sum(row.sum() for row in tree) == (size - 1) * M
    assert tree[1].sum() == ceil(log2(size)) * M
    ring = sent(ranks, size, broadcast("ring"))
    assert [row.sum() for row in ring] == [0 if rank == 0 else M for rank in range(size)]  # the last has nobody
    assert right_neighbour_only(ring)


@pytest.mark.parametrize("size", [2, 3, 5, 8])
def test_the_halves_of_all_reduce(ranks, size):
    part = ELEMENTS // size

    def reduce_scatter(algorithm):
        return lambda world: md.reduce_scatter_tensor(
            np.empty(part, np.float32), np.ones(ELEMENTS, np.float32), group=world, algorithm=algorithm
        )

    def all_gather(algorithm):
        return lambda world: md.all_gather_into_tensor(
            np.empty(ELEMENTS, np.float32), np.ones(part, np.float32), group=world, algorithm=algorithm
        )

    def reduce(algorithm):
        return lambda world: md.reduce(np.ones(ELEMENTS, np.float32), 0, group=world, algorithm=algorithm)

    for call in (reduce_scatter, all_gather):
        for algorithm in ("ring", "direct"):
            rows = sent(ranks, size, call(algorithm))
            assert [row.sum() for row in rows] == [(size - 1) * M // size] * size
            assert right_neighbour_only(rows) == (algorithm == "ring" or size == 2)
    for algorithm in tables.REDUCE:
        assert [row.sum() for row in sent(ranks, size, reduce(algorithm))] == [0] + [M] * (size - 1)


@pytest.mark.parametrize("size", [2, 3, 8])
def test_exchanges_and_barrier(ranks, size):
    part = ELEMENTS // size

    def all_to_all(world):
        md.all_to_all_single(np.empty(ELEMENTS, np.float32), np.ones(ELEMENTS, np.float32), group=world)

    def scatter(world):
        pieces = [np.ones(part, np.float32)] * size if world.rank == 0 else None
        md.scatter(np.empty(part, np.float32), pieces, 0, world)

    def gather(world):
        pieces = [np.empty(part, np.float32) for _ in range(size)] if world.rank == 0 else None
        md.gather(np.ones(part, np.float32), pieces, 0, world)

    rows = sent(ranks, size, all_to_all)
    assert all(row.tolist() == [part * 4 * (peer != rank) for peer in range(size)] for rank, row in enumerate(rows))
    assert [row.sum() for row in sent(ranks, size, scatter)] == [(size - 1) * part * 4] + [0] * (size - 1)
    assert [row.sum() for row in sent(ranks, size, gather)] == [0] + [part * 4] * (size - 1)
    results = ranks(size).run(measure, md.barrier)
    for result in results:
        assert result.sent.sum(axis=0).tolist() == [0, ceil(log2(size)), 0]  # empty messages


def test_a_pipelined_broadcast_goes_in_pieces(ranks):
    elements = 3 * algorithms.SEGMENT_BYTES // 4 + 1
    rows = ranks(3).run(measure, lambda w: md.broadcast(np.ones(elements, np.float32), 0, w, algorithm="ring"))
    assert [row.sent[:, 1].sum() for row in rows] == [4, 4, 0]


@pytest.mark.parametrize(
    ("size", "elements", "algorithm"),
    [
        (2, 1 << 16, "tree"),
        (2, (1 << 16) + 1, "ring"),
        (3, (1 << 16) + 1, "ring"),
        (4, 1 << 16, "tree"),
        (4, (1 << 16) + 1, "halving_doubling"),
    ],
)
def test_auto_goes_by_size(ranks, size, elements, algorithm):
    def main(world):
        from minidist import trace

        md.place_on_nodes(world, world.size)
        trace.start()
        md.all_reduce(np.ones(elements, np.float32), group=world)
        return [event.name for event in trace.stop() if isinstance(event, trace.Event) and event.track != "wait"]

    assert ranks(size).run(main)[0] == [f"all_reduce(SUM, float32 ({elements},), {algorithm})"]


def test_ring_with_sizes_that_do_not_divide(ranks):
    """Seven elements over three ranks are chunks of 3, 2 and 2: a rank sends all but one chunk in each half."""
    rows = ranks(3).run(measure, lambda w: md.all_reduce(np.ones(7, np.float32), group=w, algorithm="ring"))
    chunks = [3, 2, 2]
    # reduce-scatter leaves out the rank's own chunk, all-gather the one that its right neighbour has
    assert [row.sent[:, 2].sum() for row in rows] == [14 - chunks[rank] - chunks[(rank + 1) % 3] for rank in range(3)]


def count_collectives(world):
    alone = world.new_group([world.rank])
    before = world.collectives
    for group in (world, alone):
        md.all_reduce(np.ones(5, np.float32), group=group)
    md.all_gather_into_tensor(np.ones(3 * world.size), np.ones(3), group=world)
    md.all_reduce(np.ones(5, np.float32), group=world)
    return (world.collectives - before).as_list()


def test_collectives_are_counted_by_kind(ranks):
    """Largest traffic first; a group of one rank sends nothing, and is not counted."""
    for rows in ranks(3).run(count_collectives):
        found = {(row["axis"], row["name"], row["dtype"], row["elements"], row["calls"]) for row in rows}
        gathered = ("world", "all_gather_into_tensor", "float64", 9, 1)
        assert found == {gathered, ("world", "all_reduce", "float32", 5, 2)} and len(rows) == 2
        sent = {row["name"]: row["bytes_sent"] for row in rows}
        assert sent["all_gather_into_tensor"] == 48  # 24 bytes to each of the others
        assert list(sent.values()) == sorted(sent.values(), reverse=True)
