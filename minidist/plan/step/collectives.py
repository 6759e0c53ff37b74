"""Time of a collective of a group of GPUs, from the group's place in the nodes.

Ranks are numbered so that tensor-parallel ranks are neighbours, then context-, then data-parallel ones, then the stages
of the pipeline (Megatron-LM's order, and this library's mesh). So a group is ``size`` ranks that are ``stride`` apart.

    all-gather, reduce-scatter    (N-1)/N M / B       M the whole array, B the bus bandwidth
    all-reduce                    twice that
    all-to-all                    the larger of two: bytes that stay in the node over the bandwidth of the link inside,
                                  bytes that leave it over that of the network card

A ring that crosses nodes enters and leaves each over as many network cards as it has ranks there, and never runs faster
than the links inside. Each step of a tree over nodes adds a latency.
"""

from dataclasses import dataclass
from functools import lru_cache
from math import ceil, gcd, log2

from minidist.plan.cluster.efficiency import Efficiency
from minidist.plan.cluster.hardware import ClusterSpec


@dataclass(frozen=True)
class Group:
    """Ranks that communicate: their number, the distance between neighbours, and the size of a node.

    Such groups fill the cluster, and the slowest one counts. So ``per_node`` is the smallest part of a group in a node:
    2 for groups of four on nodes of six, which cut every second group in two.
    """

    size: int
    stride: int
    node_size: int

    @property
    def per_node(self) -> int:
        return max(1, gcd(self.node_size, self.size * self.stride) // self.stride)

    @property
    def leaves_node(self) -> bool:
        return self.per_node < self.size


@dataclass(frozen=True, eq=False)  # compared and hashed by identity, for the cache below
class Network:
    """Links of a cluster, with the speed that benchmarks measured."""

    cluster: ClusterSpec
    efficiency: Efficiency

    def group(self, size: int, stride: int) -> Group:
        return Group(size, stride, self.cluster.node_size)

    def bus_bandwidth(self, group: Group, nbytes: float) -> float:
        """Bytes/s that each rank of a ring passes on."""
        links = self.cluster.links
        inside = links.inside.bandwidth * self.efficiency.of_collective(nbytes)
        if not group.leaves_node:
            return inside
        return min(inside if group.per_node > 1 else float("inf"), group.per_node * self.card)

    @property
    def card(self) -> float:
        """Bytes/s of one rank's share of the network cards."""
        return self.cluster.links.between.bandwidth * self.efficiency.between

    def latency(self, group: Group) -> float:
        links = self.cluster.links
        nodes = ceil(group.size / group.per_node)
        return links.inside.latency * (group.per_node - 1) + links.between.latency * ceil(log2(nodes))

    def all_gather(self, group: Group, nbytes: float) -> float:
        """Seconds of an all-gather, or a reduce-scatter; ``nbytes`` is the size of the whole array."""
        return _all_gather(self, group, nbytes)

    reduce_scatter = all_gather

    def all_reduce(self, group: Group, nbytes: float) -> float:
        return 2 * _all_gather(self, group, nbytes)

    def all_to_all(self, group: Group, nbytes: float) -> float:
        """Seconds of an all-to-all; ``nbytes`` is the size of each rank's array, its own part included."""
        if group.size == 1:
            return 0.0
        inside = self.cluster.links.inside.bandwidth * self.efficiency.of_collective(nbytes)
        staying = nbytes * (group.per_node - 1) / group.size
        leaving = nbytes * (group.size - group.per_node) / group.size
        return self.latency(group) + max(staying / inside, leaving / self.card)

    def send(self, group: Group, nbytes: float) -> float:
        """Seconds of one message to the next rank of a group."""
        if group.size == 1:
            return 0.0
        link = self.cluster.links.between if group.leaves_node else self.cluster.links.inside
        share = self.efficiency.between if group.leaves_node else self.efficiency.of_collective(nbytes)
        return link.latency + nbytes / (link.bandwidth * share)


@lru_cache(maxsize=1 << 16)
def _all_gather(network: Network, group: Group, nbytes: float) -> float:
    if group.size == 1 or not nbytes:
        return 0.0
    return network.latency(group) + (group.size - 1) / group.size * nbytes / network.bus_bandwidth(group, nbytes)


@dataclass(frozen=True)
class Sent:
    """Messages of one axis, all calls of a step together.

    Attributes:
        axis: axis of the layout. A tied weight's all-reduce is pp's, that of copies in hybrid sharding is dp's.
        collective: name of the collective. group: ranks that take part.
        nbytes: bytes that one rank sends. seconds: time, hidden or not. exposed: seconds that nothing hides.
    """

    axis: str
    collective: str
    group: Group
    nbytes: float
    seconds: float
    exposed: float
