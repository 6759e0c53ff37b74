"""Networks as graphs: routes, latencies, what is shared, and bisection bandwidths against textbook formulas."""

from itertools import combinations, pairwise, permutations

import numpy as np
import pytest

from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.max_flow import max_flow
from minidist.plan.cluster.topologies import (
    bisection_bandwidth,
    from_toml,
    single_switch,
    topology_of,
    torus,
    worst_halves,
)
from minidist.plan.cluster.topology import Link, Topology, check_connected

CLUSTERS = ["h100:8", "h100:2x8", "h100:3x5,network=rails", "h100:4x2,network=rail-only", "v100:2x16", "h100:4x1",
            "v100:3x3,network=rails", "tpu-v4:4x4x4", "tpu-v4:2x3", "h100:1x1"]  # fmt: skip


def cluster(text: str) -> Topology:
    return topology_of(ClusterSpec.parse(text))


# ── Routes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("text", CLUSTERS)
def test_routes_lead_from_rank_to_rank_over_links_that_exist(text):
    topology = cluster(text)
    check_connected(topology)
    assert topology.size == len(topology.nodes) == ClusterSpec.parse(text).world_size
    for source, destination in permutations(range(topology.size), 2):
        route = topology.route(source, destination)
        assert route[0][0] == topology.chips[source] and route[-1][1] == topology.chips[destination]
        assert all(edge in topology.links for edge in route)
        assert all(before[1] == after[0] for before, after in pairwise(route))
        assert len({edge[0] for edge in route}) == len(route)  # no vertex twice


@pytest.mark.parametrize("text", CLUSTERS)
def test_both_directions_of_a_link_are_independent_and_alike(text):
    links = cluster(text).links
    assert all(links[end, start] == link for (start, end), link in links.items())


def test_inside_a_node_a_message_crosses_its_switch_and_no_network_card():
    topology = cluster("h100:2x8")
    assert topology.route(0, 7) == (("node0.gpu0", "node0.switch"), ("node0.switch", "node0.gpu7"))
    assert topology.latency(0, 7) == pytest.approx(0.6e-6) and topology.bandwidth(0, 7) == 450e9
    assert topology.latency(0, 8) == pytest.approx(2.7e-6) and topology.bandwidth(0, 8) == 50e9
    assert topology.nodes == (0,) * 8 + (1,) * 8


def test_on_rails_equal_places_meet_on_a_leaf_and_others_on_the_spine():
    topology = cluster("h100:2x8,network=rails,oversubscription=8")
    assert topology.route(3, 11) == (("node0.gpu3", "leaf3"), ("leaf3", "node1.gpu3"))
    assert topology.route(3, 12)[1:3] == (("leaf3", "spine"), ("spine", "leaf4"))
    assert topology.bandwidth(3, 11) == 50e9 and topology.bandwidth(3, 12) == 2 * 50e9 / 8


def test_without_a_spine_the_gpu_on_the_right_rail_passes_a_message_on():
    topology = cluster("h100:2x8,network=rail-only")
    inside = (("node0.gpu3", "node0.switch"), ("node0.switch", "node0.gpu4"))
    assert topology.route(3, 12) == (*inside, ("node0.gpu4", "leaf4"), ("leaf4", "node1.gpu4"))
    assert topology.latency(3, 12) == pytest.approx(0.6e-6 + 2.7e-6)


@pytest.mark.parametrize("text", ["h100:2x8", "h100:2x8,network=rails"])
def test_with_a_spine_no_message_crosses_another_ranks_gpu(text):
    topology = cluster(text)
    for pair in permutations(range(16), 2):
        assert not {edge[0] for edge in topology.route(*pair)[1:]} & set(topology.chips)


def test_all_gpus_of_a_node_share_its_uplink_and_nothing_before_it():
    topology = cluster("h100:4x8,oversubscription=4")
    routes = [topology.route(gpu, 8 + gpu) for gpu in range(8)]
    shared = set.intersection(*map(set, routes))
    assert shared == {("leaf0", "spine"), ("spine", "leaf1")}
    assert {topology.links[edge].bandwidth for edge in shared} == {8 * 50e9 / 4}
    assert not set(topology.route(8, 0)) & set(routes[0])  # the way back has links of its own


def test_two_v100_share_a_network_card():
    topology = cluster("v100:2x16")
    first, second, third = (set(topology.route(gpu, 16 + gpu)) for gpu in (0, 1, 2))
    assert ("node0.nic0", "leaf0") in first & second and ("node0.nic0", "leaf0") not in third
    assert topology.links["leaf0", "spine"].bandwidth == 8 * 12.5e9


def test_a_single_switch():
    topology = single_switch(5, Link(1e9, 4e-6))
    assert all(len(topology.route(*pair)) == 2 for pair in permutations(range(5), 2))
    assert topology.latency(1, 4) == pytest.approx(4e-6) and topology.nodes == (0,) * 5


# ── Torus ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("shape", [(4, 4, 4), (5,), (2, 3), (1, 6, 3), (8, 2)])
@pytest.mark.parametrize("wraps", [True, False])
def test_distances_in_a_torus_are_those_of_its_coordinates(shape, wraps):
    grid = torus(shape, Link(1e9, 1e-6), wraps)
    places = np.stack(np.unravel_index(np.arange(grid.size), shape), axis=1)
    assert [grid.place(rank) for rank in range(grid.size)] == [tuple(place) for place in places.tolist()]
    away = np.abs(places[:, None] - places)
    hops = (np.minimum(away, shape - away) if wraps else away).sum(axis=-1)
    for source, destination in permutations(range(grid.size), 2):
        route = grid.route(source, destination)
        assert len(route) == hops[source, destination]
        assert grid.latency(source, destination) == pytest.approx(hops[source, destination] * 1e-6)


def test_a_route_in_a_torus_finishes_one_dimension_after_the_other():
    grid = torus((4, 4, 4), Link(1e9))
    for pair in permutations(range(64), 2):
        ends = [[*map(int, chip.removeprefix("chip").split(","))] for edge in grid.route(*pair) for chip in edge]
        axes = [int(np.flatnonzero(np.array(a) != b)[0]) for a, b in zip(ends[::2], ends[1::2], strict=True)]
        assert axes == sorted(axes)


def test_each_chip_has_two_neighbours_in_every_dimension():
    grid = torus((4, 5, 6), Link(1e9))
    assert len(grid.links) == 6 * grid.size
    assert len(torus((4, 5, 6), Link(1e9), wraps=False).links) == 2 * (3 * 30 + 4 * 24 + 5 * 20)
    assert len(torus((2, 1), Link(1e9)).links) == 2  # around a side of two is the same link


def test_tpu_slices_have_links_around_from_four_chips_on_each_side():
    assert len(cluster("tpu-v4:4x4x4").links) == 6 * 64
    assert len(cluster("tpu-v4:2x4x4").links) == 2 * (16 + 2 * 24)
    for flat in ("4x4", "4x4x1"):  # a side that is not written has one chip
        assert len(cluster(f"tpu-v4:{flat}").links) == 2 * 24


# ── Bisection bandwidth ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("side", "dimensions"), [(8, 1), (6, 2), (4, 3), (8, 3)])
def test_the_bisection_of_a_k_ary_n_cube(side, dimensions):
    """2 k^(n-1) links in each direction, half of them without the links around (Dally and Towles, 2004, ch. 5)."""
    shape = (side,) * dimensions
    assert bisection_bandwidth(torus(shape, Link(3e9))) == 2 * side ** (dimensions - 1) * 3e9
    assert bisection_bandwidth(torus(shape, Link(3e9), wraps=False)) == side ** (dimensions - 1) * 3e9


def test_a_long_torus_is_cut_across_its_longest_even_side():
    assert bisection_bandwidth(torus((4, 4, 16), Link(1e9))) == 2 * 16 * 1e9
    assert bisection_bandwidth(torus((16, 4, 4), Link(1e9))) == 2 * 16 * 1e9
    grid = torus((3, 4), Link(1e9))
    assert [{grid.place(rank)[1] for rank in half} for half in worst_halves(grid)] == [{0, 1}]


@pytest.mark.parametrize("wraps", [False, True])
@pytest.mark.parametrize("shape", [(5,), (3, 2), (2, 5), (4, 3), (7, 2), (3, 3), (2, 2, 3), (5, 2, 1)])
def test_no_other_halves_of_a_small_torus_have_less_between_them(shape, wraps):
    grid = torus(shape, Link(1.0), wraps)
    halves = combinations(range(grid.size), grid.size // 2)
    assert bisection_bandwidth(grid) == min(bisection_bandwidth(grid, set(half)) for half in halves)


@pytest.mark.parametrize("over", [1, 2, 4, 8])
@pytest.mark.parametrize("nodes", [2, 4, 8])
def test_the_bisection_of_a_fat_tree_is_half_of_the_ports_over_the_oversubscription(over, nodes):
    topology = cluster(f"h100:{nodes}x8,oversubscription={over}")
    assert bisection_bandwidth(topology) == pytest.approx(nodes * 8 / 2 * 50e9 / over, rel=1e-12)


def test_rails_do_not_feel_oversubscription_between_equal_places():
    assert bisection_bandwidth(cluster("h100:4x8,network=rails,oversubscription=8")) == 16 * 50e9


def test_a_node_is_cut_through_its_switch():
    assert bisection_bandwidth(cluster("h100:8")) == 4 * 450e9
    assert bisection_bandwidth(cluster("gb200:72")) == 36 * 900e9
    assert bisection_bandwidth(cluster("v100:2x16")) == 8 * 12.5e9


@pytest.mark.parametrize("text", ["h100:2x2", "h100:2x4,oversubscription=4", "tpu-v4:2x4"])
def test_no_other_halving_is_narrower(text):
    """Of all of them, where there are few enough."""
    topology = cluster(text)
    halves = combinations(range(topology.size), topology.size // 2)
    assert bisection_bandwidth(topology) == min(bisection_bandwidth(topology, set(half)) for half in halves)


def test_the_largest_flow_of_a_textbook_network():
    """Cormen, Leiserson, Rivest and Stein, Introduction to Algorithms, figure 26.1: 23."""
    edges = {
        "s v1": 16,
        "s v2": 13,
        "v1 v3": 12,
        "v2 v1": 4,
        "v2 v4": 14,
        "v3 v2": 9,
        "v3 t": 20,
        "v4 v3": 7,
        "v4 t": 4,
    }
    assert max_flow({tuple(edge.split()): capacity for edge, capacity in edges.items()}, {"s"}, {"t"}) == 23


@pytest.mark.parametrize("seed", range(20))
def test_the_largest_flow_is_the_smallest_cut(seed):
    """Against all cuts of a random graph: each vertex between the ends is on one side or the other."""
    generator = np.random.default_rng(seed)
    capacity = generator.integers(0, 10, (7, 7)) * (generator.random((7, 7)) < 0.5)
    edges = {(str(a), str(b)): int(capacity[a, b]) for a, b in permutations(range(7), 2) if capacity[a, b]}
    cuts = []
    for between in range(2**5):
        side = {0} | {vertex for vertex in range(1, 6) if between >> (vertex - 1) & 1}
        cuts.append(sum(c for (a, b), c in edges.items() if int(a) in side and int(b) not in side))
    assert max_flow(edges, {"0"}, {"6"}) == min(cuts)


def test_a_flow_gives_way_to_a_larger_one():
    """The shortest path, s a b t, has to be given up in its middle."""
    edges = "s a, a b, b t, s c, c d, d b, a e, e f, f t"
    assert max_flow({tuple(edge.split()): 1 for edge in edges.split(",")}, {"s"}, {"t"}) == 2


def test_a_half_needs_a_rank():
    topology = cluster("h100:8")
    for half in (set(), set(range(8))):
        with pytest.raises(ValueError, match="two halves need a rank each"):
            bisection_bandwidth(topology, half)
    with pytest.raises(ValueError, match="two halves need a rank each; got 0 of 1 ranks"):
        bisection_bandwidth(cluster("h100:1x1"))


# ── One's own graph, and errors ──────────────────────────────────────────────────────────────────────────────────────

RING = """
ranks = ["a", "b", "c", "d"]
nodes = [0, 0, 1, 1]
link = [
  { between = ["a", "b"], bandwidth = 10e9 },
  { between = ["b", "c"], bandwidth = 1e9, latency = 2e-6 },
  { between = ["c", "d"], bandwidth = 10e9 },
  { between = ["d", "a"], bandwidth = 1e9, one_way = true },
]
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "ring.toml"
    path.write_text(RING)
    return path


def test_ones_own_graph(own):
    topology = from_toml(own)
    assert topology.route(3, 0) == (("d", "a"),) and len(topology.route(0, 3)) == 3  # one way alone
    assert topology.latency(0, 3) == 2e-6 and topology.bandwidth(0, 3) == 1e9 and topology.nodes == (0, 0, 1, 1)
    assert bisection_bandwidth(topology) == 1e9 and bisection_bandwidth(topology, {2, 3}) == 2e9


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('  { between = ["b", "c"], bandwidth = 1e9, latency = 2e-6 },\n', "",
         r"no path from rank 0 \(a\) to rank 2 \(c\); from there links lead to rank 1. Add a link, such as 'a' to 'c'"),
        ('["a", "b", "c", "d"]', '["a", "b", "c", "e"]', r"ring.toml: rank 3 is at 'e', which no link has as an end: "),
        ('["a", "b", "c", "d"]', '["a", "b", "c", "a"]', "each rank needs a vertex of its own"),
        ("[0, 0, 1, 1]", "[0, 0, 1]", "nodes: expected the node of each of 4 ranks, got 3"),
        ('["a", "b"], bandwidth', '["a"], bandwidth', r"link: number 0: between: expected two vertices, .* \['a'\]"),
        ('"d", "a"], bandwidth = 1e9, one_way = true', '"b", "a"], bandwidth = 1e9',
         "link: number 3: there is a link from 'b' to 'a' already: write one, with the bandwidth of all cables"),
        ("bandwidth = 10e9", "bandwidth = 0", "link: number 0: bandwidth must be above 0"),
        ("bandwidth = 10e9", "bandwith = 10e9", "link: number 0: unknown key 'bandwith': the nearest is 'bandwidth'"),
        ("one_way = true", "one_way = 1", "link: number 3: one_way: expected true or false, got 1"),
        ('ranks = ["a", "b", "c", "d"]', "", "the key 'ranks' is missing: expected a list: text each"),
        ("nodes = [0, 0, 1, 1]", "nodes = 4", "nodes: expected a list: a whole number of at least 0 each, got 4"),
    ],
)  # fmt: skip
def test_a_wrong_graph_is_named(own, before, after, message):
    assert before in RING
    own.write_text(RING.replace(before, after, 1))
    with pytest.raises(ValueError, match=message):
        from_toml(own)


def test_a_missing_link_is_found_up_front():
    topology = cluster("h100:4x8")
    for edge in [("leaf2", "spine")]:
        del topology.links[edge]
    broken = Topology(topology.chips, topology.nodes, topology.links, chips_forward=False)
    with pytest.raises(
        ValueError, match=r"no path from rank 16 \(node2.gpu0\) to rank 0 .* lead to ranks 17, 18, 19, .*"
    ):
        check_connected(broken)
    with pytest.raises(ValueError, match="lead to no rank"):
        Topology(("a", "b"), (0, 0), {("b", "a"): Link(1.0)}).route(0, 1)


def test_a_torus_has_chips():
    with pytest.raises(ValueError, match="at least one chip on each side, not 4x0"):
        torus((4, 0), Link(1e9))
