"""What each algorithm sends is what its textbook lists, message by message; the time of these is its closed form."""

from collections import Counter
from math import ceil, log2

import numpy as np
import pytest
import textbook
from calls import Case, available, call
from choosing import long

import minidist as md
from minidist import trace
from minidist.analysis.networks import Ports
from minidist.analysis.replay import replay, steps
from minidist.comm.algorithms import SEGMENT_BYTES
from minidist.comm.collectives import COLLECTIVES
from minidist.comm.cost import COSTS, Network, cheapest, seconds
from minidist.comm.double_tree import MOST_PIECES, children_of, double_tree, piece_count, trees_below
from minidist.comm.placement import HIERARCHICAL, Link, Links

ALPHA, BETA = 3.0, 0.25
ALIKE = Links(Link(1 / BETA, ALPHA), Link(1 / BETA, ALPHA))
SHAPES, MORE = [(1, 1), (1, 2), (1, 3), (1, 5), (2, 2), (2, 3), (3, 2), (4, 1)], [(1, 7), (1, 8), (2, 4)]
ELEMENTS = 840  # float32, of the whole buffer: divided by every number of ranks from 1 to 8
SEGMENTS = 6 * SEGMENT_BYTES // 4  # elements: what pipelines cut into pieces
EVERY = [(name, algorithm, ELEMENTS) for name, row in COLLECTIVES.items() for algorithm in row.algorithms]
PIPELINED = [("broadcast", name) for name in ("ring", "double_tree", HIERARCHICAL)] + [("all_reduce", "double_tree")]
PARTS = ("reduce_scatter_tensor", "all_gather_into_tensor", "all_to_all_single", "scatter", "gather")


def recorded(world, node_size: int, chosen: list) -> list[tuple]:
    """Return for each call the log, what was sent and received, and the row of the table of collectives."""
    md.place_on_nodes(world, node_size)
    results = []
    for name, algorithm, elements in chosen:
        own = elements // world.size if name in PARTS else elements
        md.barrier(world)
        traffic, counted = world.traffic, world.collectives
        trace.start()
        call(world, Case(name, algorithm, own, "float32", md.ReduceOp.SUM, 1 % world.size, "waits"))
        log, moved = trace.stop(), world.traffic - traffic
        results.append((log, moved.sent, moved.received, (world.collectives - counted).as_list()))
    return results


def replayed(logs: list, nodes: tuple, links: Links) -> float:
    """Return the seconds that a real run takes on these links."""
    flows = replay(logs, Ports(Network(nodes, links).message)).flows
    return max((flow.arrived for flow in flows), default=0.0)


def listed(logs: list, entry_type: type, **fields) -> Counter:
    """The messages of all logs: (source, destination, bytes) -> how many."""
    return Counter(
        (entry.source, entry.destination, entry.nbytes)
        for log in logs
        for entry in log
        if isinstance(entry, entry_type) and all(getattr(entry, name) == value for name, value in fields.items())
    )


@pytest.mark.parametrize(("shapes", "pipelined"), [(SHAPES, [(1, 3)]), long(MORE, [(1, 2), (1, 5), (2, 2)])], ids=len)
def test_messages_bytes_and_seconds_are_the_textbooks(ranks, shapes, pipelined):
    for nodes, each in dict.fromkeys([*shapes, *pipelined]):
        if not available(nodes * each):
            continue
        chosen = EVERY.copy()
        if (nodes, each) in pipelined:
            chosen += [(*one, SEGMENTS) for one in PIPELINED if each < 5 or one[1] != HIERARCHICAL]
        found = ranks(nodes * each).run(recorded, each, chosen)
        for one, results in zip(chosen, zip(*found, strict=True), strict=True):
            check_messages(nodes, each, *one, *zip(*results, strict=True))
            check_seconds(nodes, each, *one, [log for log, *_ in results])


def check_messages(nodes, each, name, algorithm, elements, logs, sent, received, rows) -> None:
    n, what = nodes * each, (nodes, each, name, algorithm, elements)
    expected = textbook.messages(name, algorithm, nodes, each, 4 * elements, 1 % n)
    assert listed(logs, trace.Message, kind="send") == expected == listed(logs, trace.Message, kind="receive"), what
    assert listed(logs, trace.PointToPoint, call="post") == expected, what
    ends = {kind: {} for kind in ("send", "receive")}
    for message in (entry for log in logs for entry in log if isinstance(entry, trace.Message)):
        ends[message.kind][message.source, message.destination, message.number] = message.time
    assert all(ends["send"][key] < ends["receive"][key] for key in ends["send"]), what
    counts = np.zeros((n, n, 2), int)  # bytes and messages
    for (source, destination, nbytes), count in expected.items():
        counts[source, destination] += nbytes * count, count
    assert np.array_equal(np.stack(sent)[..., :2], counts), what
    assert np.array_equal(np.stack(received), np.stack(sent).transpose(1, 0, 2)), what
    apart = np.arange(n)[:, None] // each != np.arange(n) // each
    whole = elements // n if name in ("scatter", "gather") else elements
    for rank, table in enumerate(rows):
        kinds = [(row["axis"], row["name"], row["dtype"], row["elements"], row["calls"]) for row in table]
        assert kinds == [("world", name, "float32", whole, 1)] * (n > 1), what
        for row in table:
            assert row["bytes_sent"] == counts[rank, :, 0].sum(), what
            assert row["bytes_between_nodes"] == counts[rank, apart[rank], 0].sum(), what
    calls = [entry.name for log in logs for entry in log if isinstance(entry, trace.Event) and entry.track != "wait"]
    assert len(calls) == n * (n > 1) and all(call.startswith(f"{name}(") and algorithm in call for call in calls), what


def check_seconds(nodes, each, name, algorithm, elements, logs) -> None:
    """Compare the closed form with a replay.

    On links of two speeds it is exact, except where ranks need not wait for the slowest message of each step, or
    messages wait for each other: its sums over steps are then off by up to 30 percent. It does not know either that
    messages of two trees wait for each other, which may then take up to half as long again."""
    n = nodes * each
    placed = tuple(rank // each for rank in range(n))
    nbytes, what = 4 * elements, (nodes, each, name, algorithm, elements)
    alike, two_speeds = (seconds(name, algorithm, nbytes, placed, links, 1 % n) for links in (ALIKE, Links()))
    if elements == ELEMENTS or algorithm == "double_tree":
        by_hand = textbook.seconds(n, ALPHA, BETA * nbytes, piece_count(nbytes))
        assert by_hand.get((name, algorithm), alike) == pytest.approx(alike), what
    if algorithm == "double_tree":
        assert 0.89 * alike <= replayed(logs, placed, ALIKE) <= 1.5 * alike, what
        return
    assert replayed(logs, placed, ALIKE) == pytest.approx(alike, rel=1e-12), what
    latency = Links(*[Link(float("inf"), 1.0)] * 2)
    assert steps(logs) == round(seconds(name, algorithm, nbytes, placed, latency, 1 % n)), what
    loose = algorithm in ("direct", "two_shot") or (algorithm in ("tree", "halving_doubling") and n & (n - 1))
    tolerance = 0.3 if loose else 1e-9
    assert replayed(logs, placed, Links()) == pytest.approx(two_speeds, rel=tolerance), what


def logged(world, function) -> list:
    md.barrier(world)
    trace.start()
    function(world)
    return trace.stop()


def test_a_barrier_and_chunks_of_different_sizes(ranks):
    """Seven elements over three ranks are chunks of 3, 2, 2. A rank sends all but its own chunk in the reduce-scatter,
    and all but its right neighbour's in the all-gather."""
    barriers = ranks(3).run(logged, md.barrier)
    rings = ranks(3).run(logged, lambda world: md.all_reduce(np.ones(7, "f"), group=world, algorithm="ring"))
    assert listed(barriers, trace.Message, kind="send") == {(r, (r + d) % 3, 0): 1 for r in range(3) for d in (1, 2)}
    assert steps(barriers) == 2 == ceil(log2(3))
    sent = [(r, c) for r in range(3) for kept in (r, (r + 1) % 3) for c in {0, 1, 2} - {kept}]
    assert listed(rings, trace.Message, kind="send") == Counter((r, (r + 1) % 3, (12, 8, 8)[c]) for r, c in sent)


# What "auto" makes of the costs


def chosen(world, node_size: int, links: Links | None, nbytes: int) -> str:
    """The algorithm of an all-reduce."""
    md.place_on_nodes(world, node_size, links)
    log = logged(world, lambda world: md.all_reduce(np.ones(nbytes // 4, np.float32), group=world))
    (name,) = [entry.name for entry in log if isinstance(entry, trace.Event) and entry.track == "communication"]
    return name.rpartition(" ")[2].rstrip(")")


def test_auto_goes_by_size_on_one_node_and_by_cost_on_several(ranks):
    few = 256 << 10  # bytes up to which few steps are better than few bytes
    fast, alike = Links(Link(1e10, 1e-6), Link(1e9, 1e-5)), Links(between=Links().inside)
    for size, node_size, links, nbytes, expected in (
        (2, 2, None, few, "tree"), (2, 2, None, few + 4, "ring"), (3, 3, None, few + 4, "ring"),
        (4, 4, None, few, "tree"), (4, 4, None, few + 4, "halving_doubling"), (4, 2, None, 1 << 22, HIERARCHICAL),
        (4, 2, alike, 1 << 22, "halving_doubling"), (6, 2, fast, 16, None), (6, 3, fast, 60_000, HIERARCHICAL),
    ):  # fmt: skip
        if available(size):
            nodes = tuple(rank // node_size for rank in range(size))
            if size != node_size:
                costs = {name: seconds("all_reduce", name, nbytes, nodes, links) for name in COSTS["all_reduce"]}
                best = min(costs, key=costs.get)
                assert expected in (None, best) and cheapest("all_reduce", nbytes, nodes, links) == best
                expected = best
            assert ranks(size).run(chosen, node_size, links, nbytes) == [expected] * size
    assert {name: set(c) for name, c in COSTS.items()} == {n: set(row.algorithms) for n, row in COLLECTIVES.items()}
    assert cheapest("all_reduce", 1 << 26, (0, 0, 0, 1, 1)) != HIERARCHICAL  # not as many on every node


# Two trees


def depth(parents: list, rank: int) -> int:
    return 0 if parents[rank] is None else 1 + depth(parents, parents[rank])  # a circle is a RecursionError


def test_two_binary_trees_share_the_inner_ranks():
    """The trees are those of NCCL's src/graph/trees.cc for 12 ranks and for 13, and have its properties for any number:
    binary, as deep as can be, every rank inner in one of them only (with an odd number, one in both)."""
    n = None
    assert double_tree(12) == ([n, 2, 4, 2, 8, 6, 4, 6, 0, 10, 8, 10], [1, 3, 1, 11, 5, 7, 5, 3, 9, 7, 9, n])
    assert double_tree(13) == ([n, 2, 4, 2, 8, 6, 4, 6, 0, 10, 12, 10, 8], [9, n, 3, 5, 3, 9, 7, 5, 7, 1, 11, 0, 11])
    for size in range(1, 101):
        trees = [(parents, parents.index(None), ceil(log2(size))) for parents in double_tree(size)]
        first, second = ({parent for parent in parents if parent is not None} for parents, *_ in trees)
        assert first | second == (set(range(size)) if size > 1 else set()), size
        assert first & second == ({0} if size % 2 and size > 1 else set()), size
        for src in {0, size // 2, size - 1}:  # of a broadcast
            trees += [(parents, src, ceil(log2(max(size - 1, 1))) + 1) for parents in trees_below(src, size)]
        for parents, root, deepest in trees:
            assert len(parents) == size and parents.count(None) == 1 and parents[root] is None, size
            assert max(depth(parents, rank) for rank in range(size)) <= deepest, size
            assert all(len(children_of(parents, rank)) <= 2 for rank in range(size)), size
            assert len(children_of(parents, root)) == min(1, size - 1), size
    counts = [piece_count(nbytes) for nbytes in (0, 1, 2 * SEGMENT_BYTES, 2 * SEGMENT_BYTES + 1, 1 << 40)]
    assert counts == [1, 1, 1, 2, MOST_PIECES]
