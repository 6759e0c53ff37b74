"""All-reduce algorithms on clusters of nodes: what crosses nodes, who wins, and what "auto" makes of it."""

from math import ceil, log2

import numpy as np
import pytest

import minidist as md
from minidist import trace
from minidist.analysis.clock.replay import replay
from minidist.analysis.clock.report import report
from minidist.comm.nodes.cost import cheapest, seconds
from minidist.comm.nodes.placement import place_on_nodes
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.topologies import topology_of

ALGORITHMS = ("tree", "ring", "halving_doubling", "double_tree", "hierarchical")
SIZES = (64 << 10, 1 << 20, 8 << 20)  # bytes
LIMIT = 120  # seconds for one run of a cluster


def reduce(world, node_size, nbytes, algorithm):
    place_on_nodes(world, node_size)
    array = np.zeros(nbytes // 4, np.float32)
    trace.start()
    md.all_reduce(array, group=world, algorithm=algorithm)
    return trace.stop()


def on_the_clock(ranks, spec: ClusterSpec, nbytes: int, algorithm: str):
    topology = topology_of(spec)
    logs = ranks(spec.world_size).run(reduce, spec.node_size, nbytes, algorithm, timeout=LIMIT)
    return report(replay(logs, topology, None))


@pytest.mark.long
@pytest.mark.parametrize("text", ["h100:2x4", "a100:3x2", pytest.param("h100:4x3", marks=pytest.mark.long)])
def test_hierarchical_wins_where_buffers_are_large(ranks, text):
    """And takes its closed form: 2 (L-1) steps inside a node and 2 (n-1) steps between nodes."""
    spec = ClusterSpec.parse(text)
    n, size = spec.nodes, spec.node_size
    for nbytes in SIZES[1:]:
        found = {name: on_the_clock(ranks, spec, nbytes, name).seconds for name in ALGORITHMS}
        assert min(found, key=found.get) == "hierarchical"
        inside = (size - 1) * (spec.inside.latency + nbytes / size / spec.inside.bandwidth)
        across = (n - 1) * (spec.between.latency + nbytes / size / n / spec.between.bandwidth)
        whole = nbytes // 4 % (size * n) == 0  # else some chunks are an element larger than others
        assert found["hierarchical"] == pytest.approx(2 * (inside + across), rel=1e-9 if whole else 1e-3)


@pytest.mark.long
@pytest.mark.parametrize("text", ["h100:2x4", "h100:4x3", "h100:4x2,oversubscription=4", "h100:2x4,oversubscription=8"])
@pytest.mark.parametrize("nbytes", SIZES)
def test_what_auto_takes_is_the_best_on_the_clock_or_nearly(ranks, text, nbytes):
    """The cost model has no shared links, and a latency that keeps a port busy: so 10 percent."""
    spec = ClusterSpec.parse(text)
    nodes = topology_of(spec).nodes
    best = min(on_the_clock(ranks, spec, nbytes, name).seconds for name in ALGORITHMS)
    chosen = cheapest("all_reduce", nbytes, nodes, spec.links)
    assert on_the_clock(ranks, spec, nbytes, chosen).seconds <= 1.1 * best


@pytest.mark.parametrize(("nodes", "size"), [(2, 4), (3, 2), (4, 2)])
def test_bytes_between_nodes(ranks, nodes, size):
    """Of all ranks together, for M bytes: only the ring and two levels send as few as can be, the latter over all
    network cards."""
    spec, nbytes = ClusterSpec.parse(f"h100:{nodes}x{size}"), 4 * 24 * 1000
    sent = {name: on_the_clock(ranks, spec, nbytes, name).bytes_between_nodes for name in ("ring", "hierarchical")}
    assert sent["hierarchical"] == 2 * (nodes - 1) * nbytes
    ranks_in_all = nodes * size
    assert sent["ring"] == nodes * 2 * (ranks_in_all - 1) * nbytes // ranks_in_all


def test_a_ring_across_nodes_uses_one_network_card_of_each_and_two_levels_use_all(ranks):
    spec = ClusterSpec.parse("h100:2x4")
    cards = {}
    for name in ("ring", "hierarchical"):
        told = on_the_clock(ranks, spec, 8 << 20, name)
        cards[name] = {link.edge[0] for link in told.links if link.edge[1].startswith("leaf") and "gpu" in link.edge[0]}
    assert (len(cards["ring"]), len(cards["hierarchical"])) == (2, 8)


@pytest.mark.parametrize("algorithm", ["tree", "halving_doubling", "hierarchical"])
def test_the_cost_model_is_exact_where_no_message_waits_for_another(ranks, algorithm):
    spec = ClusterSpec.parse("h100:2x4")
    for nbytes in SIZES:
        model = seconds("all_reduce", algorithm, nbytes, topology_of(spec).nodes, spec.links)
        assert on_the_clock(ranks, spec, nbytes, algorithm).seconds == pytest.approx(model, rel=1e-9)


@pytest.mark.long
def test_double_trees_beat_a_ring_on_many_nodes_of_one(ranks):
    """A ring takes 2 (N-1) latencies, a double tree about 2 log2 N: NCCL takes trees for this reason."""
    spec, nbytes = ClusterSpec.parse("h100:16x1"), 256 << 10
    ring, trees = (on_the_clock(ranks, spec, nbytes, name).seconds for name in ("ring", "double_tree"))
    assert trees < ring / 1.5
    assert (
        ring >= 2 * 15 * spec.between.latency and trees <= 4 * ceil(log2(16)) * spec.between.latency + 4 * nbytes / 50e9
    )
