"""All-reduce algorithms on clusters of nodes: what crosses nodes, who wins, and what "auto" makes of it."""

import numpy as np
import pytest
from choosing import long

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


@pytest.mark.parametrize("text", ["a100:3x2", *map(long, ("h100:2x4", "h100:4x3", "h100:4x2,oversubscription=4"))])
def test_hierarchical_wins_where_buffers_are_large_and_auto_takes_the_best_or_nearly(ranks, text):
    """By its closed form: 2 (L-1) steps inside a node and 2 (n-1) steps between nodes. The cost model that chooses has
    no shared links, and a latency that keeps a port busy: so 10 percent."""
    spec = ClusterSpec.parse(text)
    n, size, topology = spec.nodes, spec.node_size, topology_of(spec)
    for nbytes in SIZES:
        found = {}
        for name in ALGORITHMS:
            told = report(replay(ranks(n * size).run(reduce, size, nbytes, name, timeout=LIMIT), topology, None))
            found[name] = told.seconds
            between = {"ring": n * 2 * (n * size - 1) * nbytes / n / size, "hierarchical": 2 * (n - 1) * nbytes}
            assert name not in between or told.bytes_between_nodes == pytest.approx(between[name], rel=1e-3)
        chosen = cheapest("all_reduce", nbytes, topology.nodes, spec.links)
        assert found[chosen] <= 1.1 * min(found.values())
        if nbytes == SIZES[0] or spec.oversubscription > 1:
            continue
        assert min(found, key=found.get) == "hierarchical"
        inside = (size - 1) * (spec.inside.latency + nbytes / size / spec.inside.bandwidth)
        across = (n - 1) * (spec.between.latency + nbytes / size / n / spec.between.bandwidth)
        whole = nbytes // 4 % (size * n) == 0  # else some chunks are an element larger than others
        assert found["hierarchical"] == pytest.approx(2 * (inside + across), rel=1e-9 if whole else 1e-3)
