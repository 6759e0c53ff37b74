"""Algorithms that know nodes: against sums in one process, and what they send from node to node against formulas."""

import numpy as np
import pytest
from calls import call

import minidist as md
from minidist.comm.collectives import ReduceOp
from minidist.comm.nodes.double_tree import double_tree, trees_below
from minidist.comm.nodes.placement import place_on_nodes
from minidist.comm.tables import ALL_REDUCE, BY_COLLECTIVE, HIERARCHICAL

LIMIT = 120  # seconds for one run of a cluster
SIZES = (0, 1, 7, 1001)  # elements
DTYPES = ("float64", "float32", "int16", "complex64", "bool")
OPS = {ReduceOp.SUM: np.sum, ReduceOp.PRODUCT: np.prod, ReduceOp.MAX: np.max}
SHAPES = [(1, 3), (3, 1), (2, 2), (2, 3), (3, 2)]  # (nodes, ranks per node)
LONG = [pytest.param((nodes, each), marks=pytest.mark.long) for nodes, each in ((3, 3), (5, 3), (3, 5), (2, 7), (7, 2))]


def values(rank: int, size: int, dtype: str) -> np.ndarray:
    """Zeros, ones and twos: few twos, so that products stay exact."""
    return np.random.default_rng(rank).choice(3, size=size, p=(0.1, 0.8, 0.1)).astype(dtype)


def same(found: np.ndarray, expected: np.ndarray, *what) -> None:
    assert found.dtype == expected.dtype and np.array_equal(found, expected), (what, found, expected)


def check(group) -> int:
    """Every hierarchical collective on a group; returns how many results were compared."""
    size, rank, compared = group.size, group.rank, 0
    how = {"group": group, "algorithm": HIERARCHICAL}
    for dtype in DTYPES:
        for elements in SIZES:
            theirs = np.stack([values(r, elements, dtype) for r in range(size)])  # (ranks, elements)
            for op, combine in OPS.items():
                if dtype.startswith("complex") and op is ReduceOp.MAX:
                    continue
                expected = combine(theirs, axis=0).astype(dtype)
                if dtype == "bool":
                    expected = theirs.all(axis=0) if op is ReduceOp.PRODUCT else theirs.any(axis=0)
                x = theirs[rank].copy()
                md.all_reduce(x, op, **how)
                same(x, expected, "all_reduce", op, dtype, elements)
            for src in range(size):
                x = theirs[rank].copy()
                md.broadcast(x, src, **how)
                same(x, theirs[src], "broadcast", src, dtype, elements)
            whole = np.empty((size, elements), dtype)
            md.all_gather_into_tensor(whole, theirs[rank], **how)
            same(whole, theirs, "all_gather", dtype, elements)
            inputs = np.stack([values(r, size * elements, dtype) for r in range(size)])
            part = np.empty(elements, dtype)
            md.reduce_scatter_tensor(part, inputs[rank], **how)
            mine = slice(rank * elements, (rank + 1) * elements)
            summed = inputs.any(axis=0) if dtype == "bool" else inputs.sum(axis=0).astype(dtype)
            same(part, summed[mine], "reduce_scatter", dtype, elements)
            out = np.empty(size * elements, dtype)
            md.all_to_all_single(out, inputs[rank], **how)
            same(out, inputs[:, mine].reshape(-1), "all_to_all", dtype, elements)
            x = inputs[rank].copy()
            md.all_to_all_single(x, x, **how)
            same(x, out, "all_to_all in place", dtype, elements)
            compared += 6
    return compared


def on_nodes(world, node_size):
    place_on_nodes(world, node_size)
    return check(world)


@pytest.mark.parametrize("shape", [*SHAPES, *LONG])
def test_hierarchical_collectives(ranks, shape):
    nodes, each = shape
    assert min(ranks(nodes * each).run(on_nodes, each, timeout=LIMIT)) == 6 * len(DTYPES) * len(SIZES)


def on_scattered_ranks(world):
    """Groups whose ranks are in an order of their own: neighbours in it are on different nodes."""
    place_on_nodes(world, 3)
    compared = 0
    for ranks in ([5, 0, 4, 1], [3, 2]):
        group = world.new_group(ranks)
        if group is not None:
            compared += check(group)
    return compared


def test_groups_in_any_order(ranks):
    assert min(ranks(6).run(on_scattered_ranks, timeout=LIMIT)) > 0


def uneven_splits(world, node_size):
    """Rank a sends (a + 2 b) % 4 rows to rank b: some none at all."""
    place_on_nodes(world, node_size)
    rows = lambda a, b: (a + 2 * b) % 4  # noqa: E731
    send = [rows(world.rank, b) for b in range(world.size)]
    receive = [rows(a, world.rank) for a in range(world.size)]
    outgoing = np.concatenate([np.full((n, 3), 100 * world.rank + b) for b, n in enumerate(send)])
    incoming = np.empty((sum(receive), 3), int)
    md.all_to_all_single(incoming, outgoing, receive, send, world, algorithm=HIERARCHICAL)
    same(incoming, np.concatenate([np.full((n, 3), 100 * a + world.rank) for a, n in enumerate(receive)]))


@pytest.mark.parametrize(("size", "node_size"), [(4, 2), (6, 3), (6, 2), (3, 1), (3, 3)])
def test_all_to_all_with_splits_that_only_the_ends_know(ranks, size, node_size):
    ranks(size).run(uneven_splits, node_size, timeout=LIMIT)


def sizes_that_disagree(world):
    place_on_nodes(world, 2)
    receive = [1, 1, 1, 2] if world.rank == 0 else [1] * 4
    md.all_to_all_single(np.empty(sum(receive)), np.ones(4), receive, [1] * 4, world, algorithm=HIERARCHICAL)


def test_an_all_to_all_whose_ends_disagree_is_reported(ranks):
    with pytest.raises(md.RankFailed, match="expects 3 elements from rank 2, which sent 2"):
        ranks(4).run(sizes_that_disagree, timeout=LIMIT)


def in_the_background(world):
    """Two groups at the same time, each with several calls in flight, in place."""
    place_on_nodes(world, 2)
    other = world.new_group(range(world.size))
    arrays = [np.full(5001, float(world.rank + i)) for i in range(4)]
    works = [
        md.all_reduce(x, group=(world, other)[i % 2], async_op=True, algorithm=HIERARCHICAL)
        for i, x in enumerate(arrays)
    ]
    broadcast = np.full(3, float(world.rank))
    works.append(md.broadcast(broadcast, 3, world, True, algorithm=HIERARCHICAL))
    for work in works:
        work.wait()
    for i, x in enumerate(arrays):
        same(x, np.full(5001, sum(rank + i for rank in range(world.size)), float))
    same(broadcast, np.full(3, 3.0))


def test_asynchronous_calls(ranks):
    ranks(6).run(in_the_background, timeout=LIMIT)


def on_uneven_nodes(world):
    place_on_nodes(world, 2)
    group = world.new_group([0, 1, 2])
    if group is None:
        return None
    messages = []
    for async_op in (False, True):
        for collective in (
            lambda: md.all_reduce(np.ones(3), group=group, async_op=async_op, algorithm=HIERARCHICAL),  # noqa: B023
            lambda: md.broadcast(np.ones(3), 0, group, async_op, algorithm=HIERARCHICAL),  # noqa: B023
        ):
            with pytest.raises(ValueError) as caught:
                collective()
            messages.append(str(caught.value))
    before = group.traffic
    assert before.sent.sum() == 0  # nothing has moved
    x = np.full(1000, group.rank + 1.0)
    md.all_reduce(x, group=group)  # auto takes one that can
    same(x, np.full(1000, 6.0))
    return messages


def test_a_group_that_is_spread_unevenly(ranks):
    for messages in ranks(4).run(on_uneven_nodes, timeout=LIMIT)[:3]:
        assert len(messages) == 4 and all("has 2, 1 on its nodes: choose another algorithm" in m for m in messages)


def float64_sums(world, node_size):
    place_on_nodes(world, node_size)
    x = np.random.default_rng(world.rank).standard_normal(10_007).astype(np.float32)
    found = set()
    for algorithm in ("auto", *ALL_REDUCE):
        y = x.astype(np.float64)
        md.all_reduce(y, group=world, algorithm=algorithm)
        found.add(y.astype(np.float32).tobytes())
    return found


def test_float64_sums_do_not_show_nodes(ranks):
    results = [result for size in (1, 2, 3, 6) for result in ranks(6).run(float64_sums, size, timeout=LIMIT)]
    assert len(set.union(*results)) == 1


# What goes from node to node


ELEMENTS = 960  # divided by every number of ranks and nodes below
M = ELEMENTS * 4


def measure(world, node_size, collective, algorithm):
    """What a call sends to other nodes: bytes and messages, and the bytes that its row in the table counts."""
    place_on_nodes(world, node_size)
    md.barrier(world)
    traffic, counted = world.traffic, world.collectives
    call(world, collective, algorithm, ELEMENTS, root=0)
    moved, (row,) = world.traffic - traffic, (world.collectives - counted).as_list()
    assert row["bytes_sent"] == moved.sent[:, 0].sum() and row["bytes_between_nodes"] == moved.bytes_between_nodes
    return moved.bytes_between_nodes, int(moved.sent[moved.elsewhere, 1].sum())


def formulas(nodes: int, each: int) -> dict[tuple[str, str], np.ndarray]:
    """(collective, algorithm) -> the bytes that each rank sends to other nodes."""
    size = nodes * each
    rank, away = np.arange(size), size - each  # ranks on other nodes
    everybody, first, elsewhere = np.ones(size, int), rank == 0, rank >= each  # than rank 0
    last = rank % each == each - 1  # of a node: its right neighbour is on the next
    one_node = nodes == 1
    halves = {
        "ring": last * (not one_node) * (size - 1) * M // size,
        "direct": everybody * away * M // size,
        HIERARCHICAL: everybody * (nodes - 1) * M // nodes // each,
    }
    found = {("reduce_scatter_tensor", name): sent for name, sent in halves.items()}
    found |= {("all_gather_into_tensor", name): sent for name, sent in halves.items()}
    found |= {
        ("all_reduce", "naive"): (first * away + elsewhere) * M,
        ("all_reduce", "ring"): 2 * halves["ring"],
        ("all_reduce", "two_shot"): 2 * halves["direct"],
        ("all_reduce", "direct"): everybody * away * M,
        ("all_reduce", HIERARCHICAL): 2 * halves[HIERARCHICAL],
        ("all_reduce", "double_tree"): 2 * crossing(double_tree(size), each),
        ("broadcast", "naive"): first * away * M,
        ("broadcast", "ring"): (last & (rank < size - 1)) * M,
        ("broadcast", "double_tree"): crossing(trees_below(0, size), each),
        ("broadcast", HIERARCHICAL): (rank < away) * M // each,  # a ring from node to node, for each local index
        ("reduce", "naive"): elsewhere * M,
        ("all_to_all_single", "pairwise"): everybody * away * M // size,
        ("all_to_all_single", HIERARCHICAL): everybody * away * M // size,
        ("scatter", "direct"): first * away * M // size,
        ("gather", "direct"): elsewhere * M // size,
    }
    if size & (size - 1) == 0:  # partners are apart by powers of two; those from L on are on other nodes
        found["all_reduce", "halving_doubling"] = everybody * 2 * (nodes - 1) * M // nodes
    return found


def crossing(trees, each: int) -> np.ndarray:
    """The bytes that each rank sends to children on other nodes, half of M to each."""
    sent = np.zeros(len(trees[0]), int)
    for parents in trees:
        for rank, parent in enumerate(parents):
            if parent is not None and rank // each != parent // each:
                sent[parent] += M // 2
    return sent


SHAPES_SENT = [(2, 2), (2, 3), (3, 2), (1, 4), (4, 1), (2, 4)]


@pytest.mark.parametrize(("nodes", "each"), SHAPES_SENT)
def test_bytes_between_nodes(ranks, nodes, each):
    for (collective, algorithm), expected in formulas(nodes, each).items():
        results = ranks(nodes * each).run(measure, each, collective, algorithm, timeout=LIMIT)
        sent = [moved for moved, _ in results]
        if (collective, algorithm) == ("all_reduce", "double_tree"):  # what goes up an edge comes down it
            assert sum(sent) == expected.sum()
        else:
            assert sent == expected.tolist(), (collective, algorithm)


@pytest.mark.parametrize(("nodes", "each"), [(2, 2), (2, 4), (4, 1), (1, 4), (4, 2)])
def test_binomial_trees(ranks, nodes, each):
    """With powers of two: a reduce begins inside the nodes, so that each sends its result once. A broadcast ends with
    the largest distance: all ranks that have the buffer send it to other nodes."""
    reduce, broadcast = (nodes - 1) * M, (nodes - 1) * each * M
    expected = {"reduce": reduce, "broadcast": broadcast, "all_reduce": reduce + broadcast}
    for collective, total in expected.items():
        results = ranks(nodes * each).run(measure, each, collective, "tree", timeout=LIMIT)
        assert sum(sent for sent, _ in results) == total, collective


def test_every_algorithm_is_measured():
    assert {(name, algorithm) for name, table in BY_COLLECTIVE.items() for algorithm in table} == {
        *formulas(2, 2), ("broadcast", "tree"), ("reduce", "tree"), ("all_reduce", "tree"),
    }  # fmt: skip


@pytest.mark.parametrize(("nodes", "each"), [(2, 2), (2, 3), (3, 2)])
def test_an_all_to_all_through_colleagues_sends_one_message_to_each_node(ranks, nodes, each):
    for algorithm, messages in (("pairwise", (nodes - 1) * each), (HIERARCHICAL, nodes - 1)):
        results = ranks(nodes * each).run(measure, each, "all_to_all_single", algorithm, timeout=LIMIT)
        assert {count for _, count in results} == {messages}
