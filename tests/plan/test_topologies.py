"""Networks as graphs: routes, latencies, what is shared, and bisection bandwidths against textbook formulas."""

from itertools import combinations, pairwise, permutations, product

import numpy as np
import pytest
from planned import GRAPH, NETWORK

from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.topologies import bisection_bandwidth, from_toml, single_switch, topology_of, torus
from minidist.plan.cluster.topology import Link, Topology, check_connected, max_flow

CLUSTERS = ("h100:2x8", "h100:3x5,network=rails", "h100:4x2,network=rail-only", "v100:2x16", "h100:4x1",
            "v100:3x3,network=rails", "tpu-v4:4x4x4", "tpu-v4:2x3", "h100:1x1", "h100:2x8,network=rails")  # fmt: skip


def cluster(text: str) -> Topology:
    return topology_of(ClusterSpec.parse(text))


def test_routes_lead_from_rank_to_rank_over_links_that_exist():
    """Routes cross no other rank's GPU, except where there is no spine, and in a torus."""
    for text in CLUSTERS:
        topology = cluster(text)
        check_connected(topology)
        assert topology.size == len(topology.nodes) == ClusterSpec.parse(text).world_size
        assert all(topology.links[end, start] == link for (start, end), link in topology.links.items()), text
        for source, destination in permutations(range(topology.size), 2):
            route = topology.route(source, destination)
            vertices = [edge[0] for edge in route]
            assert vertices[0] == topology.chips[source] and route[-1][1] == topology.chips[destination]
            assert all(edge in topology.links for edge in route) and len(set(vertices)) == len(route)
            assert all(before[1] == after[0] for before, after in pairwise(route))
            assert "rail-only" in text or "tpu" in text or not {*vertices[1:]} & {*topology.chips}


def test_a_message_crosses_the_switches_that_are_built_between_two_gpus():
    clusters = "h100:2x8", "h100:2x8,network=rails,oversubscription=8", "h100:2x8,network=rail-only"
    tree, rails, only = map(cluster, clusters)
    inside = (("node0.gpu3", "node0.switch"), ("node0.switch", "node0.gpu4"))
    assert tree.route(3, 4) == rails.route(3, 4) == only.route(3, 4) == inside and tree.nodes == (0,) * 8 + (1,) * 8
    assert rails.route(3, 11) == (("node0.gpu3", "leaf3"), ("leaf3", "node1.gpu3"))  # equal places meet on a leaf
    assert rails.route(3, 12)[1:3] == (("leaf3", "spine"), ("spine", "leaf4"))
    assert only.route(3, 12) == (*inside, ("node0.gpu4", "leaf4"), ("leaf4", "node1.gpu4"))  # passed on by gpu4
    for graph, pair, latency, bandwidth in (
        (tree, (0, 7), 0.6e-6, 450e9), (tree, (0, 8), 2.7e-6, 50e9), (rails, (3, 11), 2.7e-6, 50e9),
        (rails, (3, 12), 2.7e-6, 2 * 50e9 / 8), (only, (3, 12), 0.6e-6 + 2.7e-6, 50e9),
        (single_switch(5, Link(1e9, 4e-6)), (1, 4), 4e-6, 1e9),
    ):  # fmt: skip
        assert (graph.latency(*pair), graph.bandwidth(*pair)) == (pytest.approx(latency), bandwidth), pair


def test_distances_in_a_torus_are_those_of_its_coordinates_one_dimension_after_the_other():
    for shape, wraps in product(((4, 4, 4), (5,), (2, 3), (1, 6, 3), (8, 2)), (True, False)):
        grid = torus(shape, Link(1e9, 1e-6), wraps)
        places = np.stack(np.unravel_index(np.arange(grid.size), shape), axis=1)
        assert [grid.place(rank) for rank in range(grid.size)] == [tuple(place) for place in places.tolist()]
        away = np.abs(places[:, None] - places)
        hops = (np.minimum(away, shape - away) if wraps else away).sum(axis=-1)
        rank_of = {chip: rank for rank, chip in enumerate(grid.chips)}
        for pair in permutations(range(grid.size), 2):
            route = grid.route(*pair)
            assert len(route) == hops[pair] and grid.latency(*pair) == pytest.approx(hops[pair] * 1e-6)
            axes = [(places[rank_of[a]] != places[rank_of[b]]).argmax() for a, b in route]
            assert axes == sorted(axes)
    sides = {"4x4x4": 6 * 64, "2x4x4": 2 * (16 + 2 * 24)}  # around from four on each
    assert {side: len(cluster(f"tpu-v4:{side}").links) for side in sides} == sides


def test_bisections_are_those_of_textbooks():
    """A k-ary n-cube has 2 k^(n-1) links in each direction, half of them without the links around (Dally and Towles,
    2004, ch. 5); of a fat tree, half of the ports over the oversubscription."""
    for side, dimensions in ((8, 1), (6, 2), (4, 3)):
        shape = (side,) * dimensions
        assert bisection_bandwidth(torus(shape, Link(3e9))) == 2 * side ** (dimensions - 1) * 3e9
        assert bisection_bandwidth(torus(shape, Link(3e9), wraps=False)) == side ** (dimensions - 1) * 3e9
    assert bisection_bandwidth(torus((4, 4, 16), Link(1e9))) == 2 * 16 * 1e9  # across the longest even side
    for over, nodes in product((1, 8), (2, 8)):
        found = bisection_bandwidth(cluster(f"h100:{nodes}x8,oversubscription={over}"))
        assert found == pytest.approx(nodes * 8 / 2 * 50e9 / over, rel=1e-12)
    assert bisection_bandwidth(cluster("h100:4x8,network=rails,oversubscription=8")) == 16 * 50e9  # no spine is crossed
    nodes = {"h100:8": 4 * 450e9, "gb200:72": 36 * 900e9, "v100:2x16": 8 * 12.5e9}
    assert {text: bisection_bandwidth(cluster(text)) for text in nodes} == nodes


def test_no_other_halves_have_less_between_them():
    """All halves are tried, where there are few enough."""
    shapes = ((5,), (3, 2), (2, 5), (4, 3), (3, 3), (2, 2, 3), (5, 2, 1))
    graphs = [torus(shape, Link(1.0), wraps) for shape, wraps in product(shapes, (False, True))]
    for graph in (*graphs, *map(cluster, ("h100:2x2", "h100:2x4,oversubscription=4", "tpu-v4:2x4"))):
        halves = (set(half) for half in combinations(range(graph.size), graph.size // 2))
        assert bisection_bandwidth(graph) == min(bisection_bandwidth(graph, half) for half in halves), graph.chips


def test_the_largest_flow_is_the_smallest_cut():
    """Against all cuts of random graphs."""
    text = "s a, a b, b t, s c, c d, d b, a e, e f, f t"  # the shortest path, s a b t, has to be given up in its middle
    assert max_flow({tuple(edge.split()): 1 for edge in text.split(",")}, {"s"}, {"t"}) == 2
    for seed in range(20):
        generator = np.random.default_rng(seed)
        capacity = generator.integers(0, 10, (7, 7)) * (generator.random((7, 7)) < 0.5)
        edges = {(str(a), str(b)): int(capacity[a, b]) for a, b in permutations(range(7), 2) if capacity[a, b]}
        sides = [{0} | {one for one in range(1, 6) if between >> (one - 1) & 1} for between in range(2**5)]
        cuts = [sum(c for (a, b), c in edges.items() if int(a) in side and int(b) not in side) for side in sides]
        assert max_flow(edges, {"0"}, {"6"}) == min(cuts), seed


def test_ones_own_graph(tmp_path):
    (tmp_path / "ring.toml").write_text(NETWORK)
    topology = from_toml(tmp_path / "ring.toml")
    assert topology.route(3, 0) == (("d", "a"),) and len(topology.route(0, 3)) == 3  # one way alone
    assert topology.latency(0, 3) == 2e-6 and topology.bandwidth(0, 3) == 1e9 and topology.nodes == (0, 0, 1, 1)
    assert bisection_bandwidth(topology) == 1e9 and bisection_bandwidth(topology, {2, 3}) == 2e9
    beginning, link, rest = GRAPH.partition("[[link]]")
    links = [(link + rest).replace("gpu0", f"gpu{rank}") for rank in range(3)]
    (tmp_path / "graph.toml").write_text("\n".join([beginning, *links]))
    assert from_toml(tmp_path / "graph.toml").nodes == (0, 0, 1)
