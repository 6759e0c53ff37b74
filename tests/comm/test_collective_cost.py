"""What collectives cost: textbook formulas, the replay of real runs, and what "auto" makes of it."""

from dataclasses import replace
from math import ceil, log2

import numpy as np
import pytest
from calls import call

import minidist as md
from minidist import trace
from minidist.analysis.replay import replay
from minidist.comm.algorithms import SEGMENT_BYTES
from minidist.comm.nodes.cost import COSTS, cheapest, seconds
from minidist.comm.nodes.placement import Link, Links, place_on_nodes
from minidist.comm.tables import BY_COLLECTIVE, HIERARCHICAL

LIMIT = 60  # seconds for one run of a cluster
ALPHA, BETA = 3.0, 0.25
ALIKE = Links(Link(1 / BETA, ALPHA), Link(1 / BETA, ALPHA))
ELEMENTS = 960
M = 4 * ELEMENTS
SEGMENTS = 6 * SEGMENT_BYTES // 4  # elements
long = pytest.mark.long


def test_every_algorithm_has_a_cost():
    assert {name: set(table) for name, table in COSTS.items()} == {
        name: set(table) for name, table in BY_COLLECTIVE.items()
    }


@pytest.mark.parametrize("n", [1, 2, 3, 4, 6, 8, 16])
def test_the_formulas_of_textbooks(n):
    """Links that are all alike (Thakur, Rabenseifner and Gropp, 2005)."""
    one = (0,) * n
    a, b = ALPHA, BETA * M
    pieces = 10
    expected = {
        ("all_reduce", "ring"): 2 * (n - 1) * (a + b / n),
        ("all_reduce", "tree"): 2 * ceil(log2(n)) * (a + b),
        ("all_reduce", "naive"): 2 * (n - 1) * (a + b),
        ("all_reduce", "direct"): (n - 1) * (a + b),
        ("reduce_scatter_tensor", "ring"): (n - 1) * (a + b / n),
        ("all_to_all_single", "pairwise"): (n - 1) * (a + b / n),
        ("broadcast", "tree"): ceil(log2(n)) * (a + b),
        ("gather", "direct"): (n - 1) * (a + b / n),
    }
    if n & (n - 1) == 0:
        expected["all_reduce", "halving_doubling"] = 2 * log2(n) * a + 2 * (n - 1) / n * b
    for (collective, algorithm), value in expected.items():
        assert seconds(collective, algorithm, M, one, ALIKE) == pytest.approx(value, rel=1e-12), (collective, algorithm)
    if n > 1:
        nbytes = pieces * SEGMENT_BYTES
        ring = (n - 2 + pieces) * (a + BETA * SEGMENT_BYTES)
        assert seconds("broadcast", "ring", nbytes, one, ALIKE) == pytest.approx(ring, rel=1e-12)


def test_two_levels_by_hand():
    """Three nodes of four ranks; bytes per second and latencies that are easily told apart."""
    links = Links(inside=Link(bandwidth=100.0, latency=0.001), between=Link(bandwidth=10.0, latency=1.0))
    nodes = tuple(rank // 4 for rank in range(12))
    inside, across = 3 * (0.001 + 300 / 100), 2 * (1 + 100 / 10)  # M = 1200: quarters inside, a third of one across
    assert seconds("reduce_scatter_tensor", HIERARCHICAL, 1200, nodes, links) == pytest.approx(inside + across)
    assert seconds("all_gather_into_tensor", HIERARCHICAL, 1200, nodes, links) == pytest.approx(inside + across)
    assert seconds("all_reduce", HIERARCHICAL, 1200, nodes, links) == pytest.approx(2 * (inside + across))
    assert seconds("all_reduce", "ring", 1200, nodes, links) == pytest.approx(22 * (1 + 100 / 10))
    assert seconds("all_reduce", "direct", 1200, nodes, links) == pytest.approx(11 * (1 + 120))
    broadcast = inside + 2 * (1 + 300 / 10) + 3 * (0.001 + 300 / 100)
    assert seconds("broadcast", HIERARCHICAL, 1200, nodes, links) == pytest.approx(broadcast)
    exchange = 3 * (0.001 + 8 * 3 / 100) + 3 * (0.001 + 300 / 100) + 2 * (1 + 400 / 10)
    assert seconds("all_to_all_single", HIERARCHICAL, 1200, nodes, links) == pytest.approx(exchange)
    # ranks 0 and 2 share a node: the step of distance 2 is fast, the other two are not
    scattered = seconds("all_to_all_single", "pairwise", 400, (0, 1, 0, 1), links)
    assert scattered == pytest.approx(2 * (1 + 100 / 10) + (0.001 + 100 / 100))
    assert seconds("reduce", "tree", 1200, (0, 0), links) == pytest.approx(0.001 + 12)
    assert seconds("reduce", "tree", 1200, (0, 1), links) == pytest.approx(1 + 120)


@pytest.mark.parametrize("size", [2, 64])
def test_what_is_asked_for_must_exist(size):
    with pytest.raises(ValueError, match="no collective 'all_sum': choose from broadcast, "):
        seconds("all_sum", "ring", 8, (0,) * size)
    with pytest.raises(ValueError, match="reduce has no algorithm 'ring': choose from naive, tree"):
        seconds("reduce", "ring", 8, (0,) * size)
    with pytest.raises(ValueError, match="has 2, 1 on its nodes"):
        seconds("all_reduce", HIERARCHICAL, 8, (0, 0, 1))


def recorded(world, node_size, collective, algorithm, elements):
    place_on_nodes(world, node_size)
    trace.start()
    call(world, collective, algorithm, elements, root=1)
    return trace.stop()


def replayed(ranks, nodes, each, collective, algorithm, elements=ELEMENTS, links=ALIKE) -> tuple[float, float]:
    """What a real run takes in the replay, and the closed form."""
    logs = ranks(nodes * each).run(recorded, each, collective, algorithm, elements, timeout=LIMIT)
    placed = tuple(rank // each for rank in range(nodes * each))

    def message(size: Sized) -> float:
        return (links.inside if placed[size.source] == placed[size.destination] else links.between).seconds(size)

    flights = replay([[sized(entry) for entry in log] for log in logs], message)
    return max(flight.end for flight in flights), seconds(collective, algorithm, 4 * elements, placed, links, root=1)


class Sized(int):
    """The bytes of a message, which also know its two ranks: the replay asks with them how long it takes."""


def sized(entry):
    if not isinstance(entry, trace.PointToPoint):
        return entry
    size = Sized(entry.nbytes)
    size.source, size.destination = entry.source, entry.destination
    return replace(entry, nbytes=size)


EXACT = [
    (name, algorithm) for name, table in BY_COLLECTIVE.items() for algorithm in table if algorithm != "double_tree"
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("nodes", "each"),
    [(1, 2), (1, 3), (2, 2), (3, 2), (2, 4), *(pytest.param(*one, marks=long) for one in ((1, 5), (2, 3)))],
)
def test_closed_forms_against_real_runs(ranks, nodes, each):
    for collective, algorithm in EXACT:
        found, expected = replayed(ranks, nodes, each, collective, algorithm)
        assert found == pytest.approx(expected, rel=1e-12), (collective, algorithm)


@pytest.mark.long
@pytest.mark.parametrize(
    ("elements", "nodes", "each"),
    [
        *((ELEMENTS, *one) for one in ((2, 3), (3, 2), (2, 4))),
        *((SEGMENTS, *one) for one in ((2, 2), (4, 2))),
        *(pytest.param(ELEMENTS, *one, marks=long) for one in ((2, 2), (4, 2))),
        *(pytest.param(SEGMENTS, *one, marks=long) for one in ((2, 3), (3, 2), (2, 4))),
    ],
)
def test_closed_forms_on_links_of_two_speeds(ranks, nodes, each, elements):
    """Exact, except where ranks need not wait for the slowest message of each step, or messages wait for each other:
    the sums over steps are then off by up to 30 percent."""
    power_of_two = (nodes * each) & (nodes * each - 1) == 0
    for collective, algorithm in EXACT:
        found, expected = replayed(ranks, nodes, each, collective, algorithm, elements, Links())
        if algorithm in ("direct", "two_shot") or (algorithm in ("tree", "halving_doubling") and not power_of_two):
            assert 0.7 * expected < found < 1.3 * expected, (collective, algorithm, found / expected)
        else:
            assert found == pytest.approx(expected, rel=1e-9), (collective, algorithm)


def test_a_pipelined_broadcast_against_a_real_run(ranks):
    for nodes, each, algorithm in ((1, 4, "ring"), (2, 2, HIERARCHICAL)):
        found, expected = replayed(ranks, nodes, each, "broadcast", algorithm, SEGMENTS)
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, pytest.param(13, marks=long)])
def test_double_trees_take_little_longer_than_their_busiest_port(ranks, size):
    """The closed form knows no waiting between the two trees' messages: a run may take up to half as long again."""
    for collective in ("all_reduce", "broadcast"):
        for pieces in (1, 2, 8):
            elements = 2 * pieces * SEGMENT_BYTES // 4
            found, expected = replayed(ranks, 1, size, collective, "double_tree", elements)
            assert 0.89 * expected <= found <= 1.5 * expected, (collective, pieces, found / expected)


# What auto chooses


def chosen(world, node_size, links, nbytes):
    place_on_nodes(world, node_size, links)
    trace.start()
    md.all_reduce(np.ones(nbytes // 4, np.float32), group=world)
    md.all_to_all_single(np.ones(world.size), np.ones(world.size), group=world)
    md.all_to_all_single(np.ones(world.size), np.ones(world.size), [1] * world.size, None, world)
    events = [entry for entry in trace.stop() if isinstance(entry, trace.Event) and entry.track == "communication"]
    return [event.name.rpartition(" ")[2].rstrip(")").rpartition("(")[2] for event in events]


@pytest.mark.parametrize("node_size", [2, 3])
@pytest.mark.parametrize("nbytes", [16, 60_000, 6_000_000])
def test_auto_takes_the_cheapest_on_several_nodes(ranks, nbytes, node_size):
    links = Links(inside=Link(1e10, 1e-6), between=Link(1e9, 1e-5))
    nodes = tuple(rank // node_size for rank in range(6))
    expected = [
        cheapest("all_reduce", nbytes, nodes, links),
        cheapest("all_to_all_single", 48, nodes, links),
        "pairwise",  # with split sizes no rank knows how much the others send
    ]
    assert ranks(6).run(chosen, node_size, links, nbytes, timeout=LIMIT) == [expected] * 6
    assert expected[1] == HIERARCHICAL  # few messages, where these are small
    costs = {name: seconds("all_reduce", name, nbytes, nodes, links) for name in BY_COLLECTIVE["all_reduce"]}
    assert costs[expected[0]] == min(costs.values())
    assert nbytes == 16 or expected[0] == HIERARCHICAL


def test_links_decide():
    """Where links between nodes are as fast as those inside, two levels gain nothing at large sizes."""
    nodes = tuple(rank // 4 for rank in range(12))
    slow, alike = Links(), Links(between=Links().inside)
    assert cheapest("all_reduce", 1 << 26, nodes, slow) == HIERARCHICAL
    gain = [
        seconds("all_reduce", "ring", 1 << 26, nodes, links)
        / seconds("all_reduce", HIERARCHICAL, 1 << 26, nodes, links)
        for links in (slow, alike)
    ]
    assert gain[0] > 3 and gain[1] < 1.1
    assert cheapest("all_reduce", 1 << 26, (0, 0, 0, 1, 1)) != HIERARCHICAL  # not as many on every node
    found = [cheapest("all_reduce", 1 << 26, (0, 0, 1, 1), links) for links in (slow, alike)]
    assert found == [HIERARCHICAL, "halving_doubling"]  # as many bytes, in fewer steps


def test_the_links_that_the_ranks_were_placed_with_decide(ranks):
    alike = Links(between=Links().inside)
    names = [ranks(4).run(chosen, 2, links, 1 << 22, timeout=LIMIT)[0][0] for links in (None, alike)]
    assert names == [HIERARCHICAL, "halving_doubling"]
