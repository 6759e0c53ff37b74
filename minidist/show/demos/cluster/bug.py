"""The run with one bug: tensor-parallel groups lie across nodes.

The ranks were dealt to the nodes in turn. Every message is sent as before and every result has the same bits, so no
test of results finds it: only time does. It happens where another dimension of the mesh changes fastest. Megatron-LM's
default order has tp first for this reason; in a mesh of huggingface/diffusers (pull request 14725) context parallelism
changes fastest, and "a TP group takes one rank out of each run" of neighbours.
"""

from dataclasses import replace

from minidist.plan.cluster.topology import Topology
from minidist.train.layout import Layout

BUG = "the ranks of each tp group are dealt to the nodes in turn"


def across(topology: Topology, layout: Layout) -> Topology:
    """Return the topology with the ranks placed as if dp changed fastest in the mesh."""
    places = [rank % layout.tp * layout.dp + rank // layout.tp for rank in range(topology.size)]
    return replace(
        topology,
        chips=tuple(topology.chips[place] for place in places),
        nodes=tuple(topology.nodes[place] for place in places),
        routes={},
    )
