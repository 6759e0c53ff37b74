"""Networks of real clusters: one switch, nodes with a switch inside under a fat tree or rails, a torus, and your own.

A chip has its own port to each network, and both directions of a link are independent. The latency in hardware.toml is
from chip to chip; each end of the path has half of it, and further switches add nothing.
"""

from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from minidist.plan.cluster.hardware import ClusterSpec, LinkType
from minidist.plan.cluster.toml_tables import choose, from_table, read_toml
from minidist.plan.cluster.topology import Edge, Link, Topology, check_connected, max_flow

FEWEST_IN_A_RING = 4  # fewest chips on every side for which a TPU slice has wrap-around links, as Google's have


def topology_of(spec: ClusterSpec) -> Topology:
    """Build the network of a cluster.

    Vertices are ``node0.gpu3``, ``node0.switch`` (NVSwitch), ``node0.nic1`` if accelerators share network cards,
    ``leaf0`` and ``spine``. A leaf's links to the spine are one edge, which all chips below it share: its bandwidth is
    that of the ports below, divided by ``oversubscription``.

    Raises:
        ValueError: if the network is a file that cannot be read, lacks a link, or has other ranks or nodes.
    """
    if spec.network.endswith(".toml"):
        own = from_toml(spec.network)
        if own.size != spec.world_size:
            raise ValueError(
                f"{spec.network} has {own.size} ranks, but {spec} has {spec.world_size} accelerators: write a cluster "
                f"of {own.size}, or add ranks to the file"
            )
        nodes = tuple(rank // spec.node_size for rank in range(spec.world_size))
        if any(own.nodes) and spec.nodes > 1 and own.nodes != nodes:
            raise ValueError(
                f"{spec.network} has nodes = {list(own.nodes)}, but those of {spec} are {list(nodes)}: make them agree"
            )
        return own if any(own.nodes) else replace(own, nodes=nodes)
    if spec.torus:
        wraps = min(spec.torus) >= FEWEST_IN_A_RING
        return torus(spec.torus, Link(spec.inside.bandwidth, spec.inside.latency), wraps)
    places = list(product(range(spec.nodes), range(spec.node_size)))
    links: dict[Edge, Link] = {}
    for node, gpu in places if spec.node_size > 1 else ():
        connect(links, _gpu(node, gpu), f"node{node}.switch", _half_way(spec.inside))
    if spec.nodes > 1:
        _connect_nodes(links, spec, places)
    return Topology(
        chips=tuple(_gpu(node, gpu) for node, gpu in places),
        nodes=tuple(node for node, _ in places),
        links=links,
        chips_forward=spec.network == "rail-only",  # a GPU on the right rail forwards a message, as with NCCL's PXN
    )


def _connect_nodes(links: dict[Edge, Link], spec: ClusterSpec, places: list[tuple[int, int]]) -> None:
    """Connect each GPU over its network card to a leaf switch, and each leaf to the spine."""
    cards, port = spec.nics or spec.node_size, _half_way(spec.between)
    for node, gpu in places:
        card = gpu * cards // spec.node_size
        leaf = f"leaf{node if spec.network == 'tree' else card}"
        if cards == spec.node_size:
            connect(links, _gpu(node, gpu), leaf, port)
        else:
            connect(links, _gpu(node, gpu), f"node{node}.nic{card}", Link(port.bandwidth))
            connect(links, f"node{node}.nic{card}", leaf, port)
    leaves, ports = (spec.nodes, cards) if spec.network == "tree" else (cards, spec.nodes)
    uplink = Link(ports * port.bandwidth / spec.oversubscription)
    for leaf in range(leaves) if leaves > 1 and spec.network != "rail-only" else ():
        connect(links, f"leaf{leaf}", "spine", uplink)


def single_switch(ranks: int, link: Link) -> Topology:
    """Put all ranks on one switch that is never the bottleneck; ``link.latency`` is from chip to chip."""
    links: dict[Edge, Link] = {}
    for rank in range(ranks):
        connect(links, f"gpu{rank}", "switch", _half_way(link))
    return Topology(tuple(f"gpu{rank}" for rank in range(ranks)), (0,) * ranks, links)


@dataclass
class Torus(Topology):
    """Chips in a grid, each linked to two neighbours in every dimension. Ranks count the last dimension first.

    A message goes all the way in the first dimension, then in the second, and so on, each time the shorter way around
    (of two equal ones the ascending one). Such dimension-ordered routes never wait for each other in a circle (Dally
    and Seitz, 1987; around the ring this needs two virtual channels).
    """

    shape: tuple[int, ...] = ()
    wraps: bool = True

    def place(self, rank: int) -> tuple[int, ...]:
        """Return a rank's coordinates."""
        found = []
        for side in reversed(self.shape):
            rank, coordinate = divmod(rank, side)
            found.append(coordinate)
        return tuple(reversed(found))

    def _path(self, source: int, destination: int) -> tuple[Edge, ...]:
        here, goal = list(self.place(source)), self.place(destination)
        edges = []
        for axis, side in enumerate(self.shape):
            ascending = (goal[axis] - here[axis]) % side <= side / 2 if self.wraps else goal[axis] > here[axis]
            while here[axis] != goal[axis]:
                before = _chip(here)
                here[axis] = (here[axis] + (1 if ascending else -1)) % side
                edges.append((before, _chip(here)))
        return tuple(edges)


def torus(shape: tuple[int, ...], link: Link, wraps: bool = True) -> Torus:
    """Build a torus of TPUs; without ``wraps`` a mesh. ``link`` is the link between two neighbours.

    Raises:
        ValueError: if a side has no chip.
    """
    if not shape or min(shape) < 1:
        raise ValueError(f"a torus needs at least one chip on each side, not {'x'.join(map(str, shape))}")
    links: dict[Edge, Link] = {}
    places = list(product(*map(range, shape)))
    for place in places:
        for axis, side in enumerate(shape):
            if side > 1 and (wraps or place[axis] < side - 1):
                neighbour = (*place[:axis], (place[axis] + 1) % side, *place[axis + 1 :])
                connect(links, _chip(place), _chip(neighbour), link)
    return Torus(tuple(map(_chip, places)), (0,) * len(places), links, shape=shape, wraps=wraps)


@dataclass(frozen=True)
class OwnLink:
    """Table [[link]] of a file. ``between``: its two ends; ``one_way``: it leads only from the first to the second."""

    between: list[str]
    bandwidth: float
    latency: float = 0.0
    one_way: bool = False

    def __post_init__(self) -> None:
        if len(self.between) != 2 or self.between[0] == self.between[1]:
            raise ValueError(f'between: expected two vertices, such as ["gpu0", "switch"], got {self.between!r}')
        if not self.bandwidth:
            raise ValueError("bandwidth must be above 0")


@dataclass(frozen=True)
class OwnGraph:
    """Contents of a file: the vertex and the node of each rank, and the links."""

    ranks: list[str]
    link: list[OwnLink]
    nodes: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        ends = {end for link in self.link for end in link.between}
        for rank, chip in enumerate(self.ranks):
            if chip not in ends:
                raise ValueError(
                    f"rank {rank} is at {chip!r}, where no link begins or ends: {choose(chip, sorted(ends))}"
                )
        if len(set(self.ranks)) < len(self.ranks):
            raise ValueError(f"each rank needs a vertex of its own, got {self.ranks!r}")
        if self.nodes and len(self.nodes) != len(self.ranks):
            raise ValueError(f"nodes: expected the node of each of {len(self.ranks)} ranks, got {len(self.nodes)}")


def from_toml(path: str | Path) -> Topology:
    """Read your own network from a TOML file.

    The file has ``ranks``, the vertex of each rank; ``nodes``, the node of each (default: all on one); and a table
    ``[[link]]`` for each link: ``between`` (its two ends), ``bandwidth`` in bytes/s, ``latency`` in s (default: 0) and
    ``one_way`` (default: false, the same in both directions).

    Raises:
        ValueError: if the file is invalid, naming the table and what was expected, or two ranks have no path.
    """
    graph = from_table(OwnGraph, read_toml(Path(path)), str(path))
    links: dict[Edge, Link] = {}
    for number, link in enumerate(graph.link):
        start, end = link.between
        for edge in [(start, end)] if link.one_way else [(start, end), (end, start)]:
            if edge in links:
                raise ValueError(
                    f"{path}: link: number {number}: there is already a link from {edge[0]!r} to {edge[1]!r}: write "
                    "one, with the bandwidth of all cables together"
                )
            links[edge] = Link(link.bandwidth, link.latency)
    topology = Topology(tuple(graph.ranks), tuple(graph.nodes) or (0,) * len(graph.ranks), links)
    check_connected(topology)
    return topology


def connect(links: dict[Edge, Link], one: str, other: str, link: Link) -> None:
    """Add a link in both directions."""
    links[one, other] = links[other, one] = link


def bisection_bandwidth(topology: Topology, half: set[int] | None = None) -> float:
    """Bytes/s that one half of the ranks can send to the other at once, in one direction.

    It is the maximum flow between the two halves, so the capacity of the smallest cut that separates them. Textbooks
    mean the minimum over all ways to halve the ranks, but these are exponentially many. So one half is given, or the
    cuts are those of ``worst_halves``.

    Raises:
        ValueError: if one side has no rank.
    """
    capacities = {edge: link.bandwidth for edge, link in topology.links.items()}
    flows = []
    for one in worst_halves(topology) if half is None else [half]:
        rest = set(range(topology.size)) - one
        if not one or not rest:
            raise ValueError(f"each half needs at least one rank, got {len(one)} of {topology.size} ranks on one side")
        chips, others = ({topology.chips[rank] for rank in side} for side in (one, rest))
        flows.append(max_flow(capacities, chips, others))
    return min(flows)


def worst_halves(topology: Topology) -> list[set[int]]:
    """Return one half of the ranks for each cut that ``bisection_bandwidth`` tries.

    A torus is cut across its longest side, through the middle layer if that is odd, and across its longest even side.
    In other networks the half is the first ranks, which divides a node if the number of nodes is odd.
    """
    if not isinstance(topology, Torus):
        return [set(range(topology.size // 2))]
    axes = sorted(range(len(topology.shape)), key=lambda axis: -topology.shape[axis])
    even = next((axis for axis in axes if topology.shape[axis] % 2 == 0), axes[0])
    found = []
    for across in dict.fromkeys((axes[0], even)):
        order = sorted(axes, key=lambda axis, across=across: axis != across)
        ranks = sorted(range(topology.size), key=lambda rank, order=order: [topology.place(rank)[i] for i in order])
        found.append(set(ranks[: topology.size // 2]))
    return found


def _half_way(link: Link | LinkType) -> Link:
    """Return the link from a chip to a switch, or back, which has half the latency."""
    return Link(link.bandwidth, link.latency / 2)


def _gpu(node: int, gpu: int) -> str:
    return f"node{node}.gpu{gpu}"


def _chip(place) -> str:
    return f"chip{','.join(map(str, place))}"
