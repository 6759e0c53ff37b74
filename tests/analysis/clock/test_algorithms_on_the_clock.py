"""All-reduce algorithms on clusters of nodes: what crosses nodes, who wins, and what "auto" makes of it."""

import numpy as np
import pytest

import minidist as md
from minidist import trace
from minidist.analysis.clock.replay import replay
from minidist.analysis.clock.report import report
from minidist.comm.nodes.cost import cheapest
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
@pytest.mark.parametrize("text", ["h100:2x4", "a100:3x2", "h100:4x3", "h100:4x2,oversubscription=4"])
def test_hierarchical_wins_where_buffers_are_large_and_auto_takes_the_best_or_nearly(ranks, text):
    """By its closed form: 2 (L-1) steps inside a node and 2 (n-1) steps between nodes. The cost model that chooses has
    no shared links, and a latency that keeps a port busy: so 10 percent."""
    spec = ClusterSpec.parse(text)
    n, size = spec.nodes, spec.node_size
    for nbytes in SIZES:
        found = {name: on_the_clock(ranks, spec, nbytes, name).seconds for name in ALGORITHMS}
        chosen = cheapest("all_reduce", nbytes, topology_of(spec).nodes, spec.links)
        assert found[chosen] <= 1.1 * min(found.values())
        if nbytes == SIZES[0] or spec.oversubscription > 1:
            continue
        assert min(found, key=found.get) == "hierarchical"
        inside = (size - 1) * (spec.inside.latency + nbytes / size / spec.inside.bandwidth)
        across = (n - 1) * (spec.between.latency + nbytes / size / n / spec.between.bandwidth)
        whole = nbytes // 4 % (size * n) == 0  # else some chunks are an element larger than others
        assert found["hierarchical"] == pytest.approx(2 * (inside + across), rel=1e-9 if whole else 1e-3)


@pytest.mark.parametrize(("nodes", "size"), [(2, 4), (3, 2), (4, 2)])
def test_rings_and_two_levels_send_as_few_bytes_between_nodes_as_can_be_over_one_card_or_all(ranks, nodes, size):
    spec, nbytes, world = ClusterSpec.parse(f"h100:{nodes}x{size}"), 4 * 24 * 1000, nodes * size
    sent = {"ring": nodes * 2 * (world - 1) * nbytes // world, "hierarchical": 2 * (nodes - 1) * nbytes}
    for name, expected in sent.items():
        told = on_the_clock(ranks, spec, nbytes, name)
        cards = {link.edge[0] for link in told.links if link.edge[1].startswith("leaf") and "gpu" in link.edge[0]}
        assert told.bytes_between_nodes == expected
        assert len(cards) == (nodes if name == "ring" else world)
