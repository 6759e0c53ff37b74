"""Nodes: which ranks share a machine, and so the fast links inside it.

A node is a server with several GPUs. Inside it links are about ten times as fast as the links between nodes (NVLink and
InfiniBand), so an algorithm that knows the nodes sends as little as it can between them. A transport knows the node of
each rank. Here all processes run on one machine, and ``place_on_nodes`` says which of them count as one node.
"""

from collections import Counter
from dataclasses import dataclass
from operator import index

import numpy as np

from minidist.comm.group import ProcessGroup, check_world

HIERARCHICAL = "hierarchical"  # the name of algorithms that take a group with the same number of ranks on every node


@dataclass(frozen=True)
class Link:
    """One direction of a link."""

    bandwidth: float  # bytes/s, of a large message
    latency: float = 0.0  # seconds of a message without content: alpha in textbooks, whose beta is 1/bandwidth

    def seconds(self, nbytes: float) -> float:
        return self.latency + nbytes / self.bandwidth


@dataclass(frozen=True)
class Links:
    """The links of one rank: one to the ranks of its node, and one of its own to the ranks of other nodes.

    The default is one GPU of a DGX H100: NVLink 4 through NVSwitch, and a network card for InfiniBand NDR. The numbers
    and their sources are those of plan/cluster/hardware.toml.
    """

    inside: Link = Link(bandwidth=450e9, latency=0.6e-6)
    between: Link = Link(bandwidth=50e9, latency=2.7e-6)


def place_on_nodes(world: ProcessGroup, node_size: int, links: Links | None = None) -> None:
    """Place ranks 0 to n-1 on node 0, the next n on node 1 and so on, for all groups from now on. All ranks call it.

    It sends no message. ``links`` are the speeds by which algorithm="auto" chooses; None for ``Links()``.

    Raises:
        ValueError: if nodes of that size are not full, or for a group that is not the world.
    """
    check_world(world, "place_on_nodes")
    check_node_size(node_size, world.size)
    world.transport.nodes = tuple(rank // node_size for rank in range(world.size))
    world.transport.links = links


def check_node_size(node_size: int, world_size: int) -> None:
    """Raise ValueError if the ranks do not fill nodes of ``node_size``; the error names the nearest numbers that do."""
    if index(node_size) < 1:
        raise ValueError(f"node_size={node_size}: a node has at least 1 rank")
    if world_size % node_size:
        sizes = [n for n in range(1, world_size + 1) if world_size % n == 0]
        near = [max(n for n in sizes if n < node_size), *(n for n in sizes if n > node_size)][:2]
        worlds = [n for n in (world_size // node_size * node_size, -(-world_size // node_size) * node_size) if n]
        raise ValueError(
            f"node_size={node_size}: {world_size} ranks do not fill nodes of {node_size}. Choose node_size "
            f"{' or '.join(map(str, near))}, or {' or '.join(map(str, worlds))} ranks"
        )


def node_counts(nodes: tuple[int, ...]) -> list[int]:
    """Return the number of ranks on each node; ``nodes`` has the node of each rank."""
    return list(Counter(nodes).values())


def node_grid(nodes: tuple[int, ...]) -> np.ndarray:
    """Return a group's ranks, (nodes, ranks per node): a row is a node, a column has the ranks with one local index.

    Raises:
        ValueError: if the group does not have the same number of ranks on every node.
    """
    if len(set(node_counts(nodes))) > 1:
        counts = ", ".join(map(str, node_counts(nodes)))
        raise ValueError(
            f"a hierarchical algorithm needs the same number of the group's ranks on every node, but this group has "
            f"{counts} on its nodes: choose another algorithm, or a group that is spread evenly"
        )
    return np.array([[rank for rank, other in enumerate(nodes) if other == node] for node in dict.fromkeys(nodes)])


def two_levels(group: ProcessGroup) -> tuple[ProcessGroup, ProcessGroup]:
    """Return two parts of a group: the ranks of this rank's node, and those with its local index, one on each node."""
    grid = node_grid(group.nodes)
    ((node,), (local,)) = np.nonzero(grid == group.rank)
    return group.part(grid[node]), group.part(grid[:, local])
