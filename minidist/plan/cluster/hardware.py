"""Accelerators, links and nodes: the numbers that vendors publish, and your own.

They are data (hardware.toml), each with its source. Your own file has the same tables, whose entries are added to
these. A ``ClusterSpec`` names the parts of a cluster: ``h100:2x8``.
"""

import re
from dataclasses import dataclass, field, replace
from functools import cache
from math import ceil, prod
from pathlib import Path

from minidist.comm.placement import Link, Links
from minidist.plan.cluster.toml_tables import choose, from_table, read_toml

DATA = Path(__file__).with_suffix(".toml")
PRECISIONS = ("fp32", "tf32", "bf16", "fp16", "fp8", "int8", "fp4")
LARGEST = 10_000_000  # accelerators of a cluster: a hundred times the largest that is known
NETWORKS = ("tree", "rails", "rail-only")


@dataclass(frozen=True)
class Accelerator:
    """One chip. All rates are dense: without the factor of two for matrices half of whose elements are zero.

    Attributes:
        memory: bytes. memory_bandwidth: bytes/s.
        flops: precision, one of PRECISIONS -> FLOP/s: "fp32" without tensor cores, the others with them.
        source: where the numbers were read.
        sparse_flops: FLOP/s with 2:4 sparse matrices, which vendors like to print.
        sms: number of streaming multiprocessors; a TPU's TensorCores. cores: number of float32 cores.
        tensor_cores: number of tensor cores in all SMs; a TPU's matrix units.
        tensor_fma: multiply-adds of 16-bit numbers that one tensor core starts in each clock.
        clock: boost clock in Hz while tensor cores work. vector_clock: Hz while float32 cores work, if it differs.
    """

    name: str
    memory: float
    memory_bandwidth: float
    flops: dict[str, float]
    source: str
    sparse_flops: dict[str, float] = field(default_factory=dict)
    year: int = 0
    sms: int = 0
    cores: int = 0
    tensor_cores: int = 0
    tensor_fma: int = 0
    clock: float = 0.0
    vector_clock: float = 0.0

    def __post_init__(self) -> None:
        for precision in (*self.flops, *self.sparse_flops):
            if precision not in PRECISIONS:
                raise ValueError(f"unknown precision {precision!r}: {choose(precision, PRECISIONS)}")
        if not self.flops or not all((self.memory, self.memory_bandwidth, *self.flops.values())):
            raise ValueError("memory, memory_bandwidth and the FLOP/s of at least one precision must be above 0")


@dataclass(frozen=True)
class LinkType:
    """One direction of a link between two chips. bandwidth: bytes/s. latency: seconds of an empty message."""

    name: str
    bandwidth: float
    latency: float
    source: str

    def __post_init__(self) -> None:
        if not self.bandwidth:
            raise ValueError("bandwidth must be above 0")


@dataclass(frozen=True)
class NodeType:
    """Kind of server: accelerators, each with a link to the others inside, and network cards.

    Attributes:
        accelerator, inside, between: names of an accelerator and of two links. inside: link of one chip to the node's
            switch, or in a torus to one neighbour. between: link of one network card.
        size: largest number of accelerators.
        nics: number of network cards, which the accelerators share evenly; 0 for one per accelerator.
        torus: dimensions of the torus that the chips form; 0 if a switch connects them.
    """

    name: str
    accelerator: str
    size: int
    inside: str
    between: str
    source: str
    nics: int = 0
    torus: int = 0

    def __post_init__(self) -> None:
        if not self.size:
            raise ValueError("size must be at least 1")
        if self.nics and self.size % self.nics:
            raise ValueError(f"{self.nics} network cards (nics) must divide the {self.size} accelerators (size)")


@dataclass(frozen=True)
class Hardware:
    """Known accelerators, links and kinds of nodes, by name."""

    accelerators: dict[str, Accelerator]
    links: dict[str, LinkType]
    nodes: dict[str, NodeType]


KINDS = {"accelerator": Accelerator, "link": LinkType, "node": NodeType}  # table of the file -> class of its entries


def load(path: str | Path | None = None) -> Hardware:
    """Load the library's hardware and that of your own TOML file, whose entries replace those of the same name.

    Raises:
        ValueError: if the file is invalid; names the file, the table, the key and what was expected.
    """
    known = _library()
    if path is None:
        return known
    own = _read(Path(path), known)
    return Hardware(known.accelerators | own.accelerators, known.links | own.links, known.nodes | own.nodes)


@cache
def _library() -> Hardware:
    return _read(DATA, Hardware({}, {}, {}))


def _read(path: Path, known: Hardware) -> Hardware:
    """Read the entries of one file, whose nodes may also name accelerators and links of ``known``."""
    tables = read_toml(path)
    for kind in tables:
        if kind not in KINDS:
            raise ValueError(f"{path}: unknown table [{kind}]: {choose(kind, KINDS)}")
    found: dict[str, dict] = {kind: {} for kind in KINDS}
    for kind, entries in tables.items():
        if not isinstance(entries, dict):
            raise ValueError(f"{path}: expected tables such as [{kind}.own], got {kind} = {entries!r}")
        for name, table in entries.items():
            where = f"{path}: [{kind}.{name}]"
            if isinstance(table, dict):
                table = {"source": path.name} | table
            found[kind][name] = from_table(KINDS[kind], table, where)
    accelerators, links = known.accelerators | found["accelerator"], known.links | found["link"]
    for name, node in found["node"].items():
        for key, of in (("accelerator", accelerators), ("inside", links), ("between", links)):
            if getattr(node, key) not in of:
                value = getattr(node, key)
                raise ValueError(f"{path}: [node.{name}]: {key}: unknown {value!r}: {choose(value, of)}")
    return Hardware(found["accelerator"], found["link"], found["node"])


@dataclass(frozen=True)
class ClusterSpec:
    """Nodes of one kind and the network between them: ``h100:2x8`` is two nodes of eight H100s.

    Attributes:
        oversubscription: bandwidth of all ports below a leaf switch over that of its links above; at 1 the network is
            never the bottleneck.
        network: "tree": a leaf switch for each node. "rails": a leaf switch for the i-th network cards of all nodes. A
            spine connects the leaves. "rail-only": rails without a spine; a message to another rail crosses a node's
            own switch first. Or a file of links, FILE.toml: see ``from_toml``.
        nics: number of network cards in each node; 0 for one per accelerator.
        torus: shape of the one torus that all accelerators form; () if nodes have switches.
        name: name of the kind of node. full_size: accelerators of a full node.
        options: options as they were written.
    """

    accelerator: Accelerator
    nodes: int
    node_size: int
    inside: LinkType
    between: LinkType
    oversubscription: float = 1.0
    network: str = "tree"
    nics: int = 0
    torus: tuple[int, ...] = ()
    name: str = "own"
    full_size: int = 0
    options: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.nodes < 1 or self.node_size < 1:
            raise ValueError(f"a cluster needs at least one node of one accelerator, not {self.nodes}x{self.node_size}")
        if self.world_size > LARGEST:
            raise ValueError(f"a cluster may have at most {LARGEST:,} accelerators, not {self.world_size:,}")
        if not 1 <= self.oversubscription < float("inf"):
            raise ValueError(f"oversubscription must be at least 1 and finite, got {self.oversubscription:g}")
        if self.oversubscription > 1 and (self.network == "rail-only" or self.network.endswith(".toml")):
            raise ValueError(
                f"oversubscription={self.oversubscription:g} applies to uplinks, but network={self.network} has none: "
                "leave it out"
            )
        if self.network not in NETWORKS and not self.network.endswith(".toml"):
            raise ValueError(
                f"unknown network {self.network!r}: {choose(self.network, NETWORKS)}, or a file of links, net.toml"
            )

    @property
    def world_size(self) -> int:
        return self.nodes * self.node_size

    @property
    def links(self) -> Links:
        """Links by which collectives choose their algorithms: each accelerator's share if all of its node send at once.

        On rails, messages to the own rail do not cross the oversubscribed links.
        """
        share = (self.nics or self.node_size) / self.node_size
        if self.network == "tree":
            share /= self.oversubscription
        between = Link(self.between.bandwidth * share, self.between.latency)
        return Links(Link(self.inside.bandwidth, self.inside.latency), between)

    @property
    def size(self) -> str:
        """Size as it is written: nodes x accelerators in each, or the shape of the torus."""
        return "x".join(map(str, self.torus or (self.nodes, self.node_size)))

    def __str__(self) -> str:
        return self._written(self.size)

    def _written(self, size: str) -> str:
        return ",".join([f"{self.name}:{size}", *self.options])

    @classmethod
    def parse(cls, text: str, known: Hardware | None = None) -> "ClusterSpec":
        """Parse NAME:SIZE,OPTION=VALUE,... such as ``h100:2x8`` or ``own.toml#lab:4x8,oversubscription=4``.

        NAME is a kind of node, FILE.toml (which has one) or FILE.toml#KIND. SIZE is nodes x accelerators in each, or
        the accelerators of full nodes or of one node, or the shape of a torus; without it, the cluster is one full
        node. Options: oversubscription, network, and inside and between, the names of other links.

        Raises:
            ValueError: if a part is invalid; names it, and the nearest valid one.
        """
        head, *options = [part.strip() for part in text.split(",")]
        name, colon, size = head.rpartition(":")
        if not colon or size.partition("#")[0].endswith(".toml"):  # the colon of a drive, C:\own.toml
            name, size = head, None
        hardware, kind = _kind_named(name, known or load())
        node = hardware.nodes[kind]
        torus = ()
        _check_options([option.partition("=")[0] for option in options], text, bool(node.torus))
        if node.torus:
            torus = _torus_shape(name, node, size)
            nodes, node_size = 1, prod(torus)
        else:
            nodes, node_size = _nodes(name, node, size)
        spec = cls(
            hardware.accelerators[node.accelerator],
            nodes,
            node_size,
            hardware.links[node.inside],
            hardware.links[node.between],
            nics=ceil(node_size * node.nics / node.size),
            torus=torus,
            name=name,
            full_size=node.size,
            options=tuple(options),
        )
        return replace(spec, **dict(_option(option, text, hardware) for option in options))

    def check(self, world_size: int) -> None:
        """Raise ValueError if ``world_size`` ranks do not fill this cluster exactly; the error names sizes that fit."""
        if world_size == self.world_size:
            return
        others = [self._written(size) for size in self._sizes_of(world_size)]
        choices = [*others, f"a layout of {_count(self.world_size, 'rank')}"]
        raise ValueError(
            f"the layout has {_count(world_size, 'rank')}, but {self} has {_count(self.world_size, 'accelerator')}: "
            f"choose {', or '.join(choices)}"
        )

    def _sizes_of(self, count: int) -> list[str]:
        """Return up to two sizes with ``count`` accelerators: one node if they fit, else nodes filled evenly."""
        full_size = self.full_size or self.node_size
        if self.torus:
            return ["x".join(map(str, _most_cubic(count, len(self.torus))))] if count <= full_size else []
        if count <= full_size:
            return [str(count)]
        fitting = [size for size in range(full_size, 0, -1) if count % size == 0]
        even = sorted(fitting, key=lambda size: full_size % size != 0)  # divisors of a full node first
        return [f"{count // size}x{size}" for size in even[:2]]


def _kind_named(name: str, known: Hardware) -> tuple[Hardware, str]:
    """Return the hardware that a name refers to, and the name of the kind of node in it."""
    path, _, kind = name.partition("#")
    if path.endswith(".toml"):
        own, hardware = _read(Path(path), load()), load(path)
        if not kind:
            if len(own.nodes) != 1:
                raise ValueError(
                    f"{path} has {len(own.nodes)} kinds of nodes: "
                    + (f"name one, such as {path}#{next(iter(own.nodes))}" if own.nodes else "add a table [node.own]")
                )
            (kind,) = own.nodes
    else:
        hardware, kind = known, name
    if kind not in hardware.nodes:
        if kind in hardware.accelerators:
            raise ValueError(
                f"{kind} is an accelerator without a node of its own: write a file with a table [node.own] that names "
                f"it, or choose from {', '.join(hardware.nodes)}"
            )
        raise ValueError(f"unknown hardware {kind!r}: {choose(kind, hardware.nodes)}, or a file such as own.toml:2x8")
    return hardware, kind


def _nodes(name: str, node: NodeType, size: str | None) -> tuple[int, int]:
    """Return the number of nodes, and of accelerators in each."""
    numbers = _numbers(name, size, str(node.size))
    if len(numbers) > 2:
        raise ValueError(f"{name}:{size}: a size is NODESxACCELERATORS, such as {name}:2x{node.size}")
    nodes, node_size = (1, *numbers)[-2:]
    if len(numbers) == 1 and node_size % node.size == 0:  # full nodes
        nodes, node_size = node_size // node.size, node.size
    if node_size > node.size:
        count = nodes * node_size
        nearest = (
            f"{name}:{count // node.size}x{node.size}" if count % node.size == 0 else f"{name}:{nodes}x{node.size}"
        )
        if len(numbers) == 1:
            full = count // node.size * node.size
            nearest = f"{name}:{full} or {name}:{full + node.size}"
        raise ValueError(
            f"{name}:{size}: a {node.name} has {node.size} accelerators, not {node_size}: choose {nearest}"
        )
    return nodes, node_size


def _torus_shape(name: str, node: NodeType, size: str | None) -> tuple[int, ...]:
    """Return the chips on each side of the torus; sides that are not written have one, so that 8x8 is 8x8x1."""
    cube = (4,) * node.torus
    default = "x".join(map(str, cube if prod(cube) <= node.size else _most_cubic(node.size, node.torus)))
    shape = _numbers(name, size, default)
    if len(shape) > node.torus or prod(shape) > node.size:
        raise ValueError(
            f"{name}:{size}: a {node.name} is a torus of up to {node.torus} dimensions and {node.size:,} chips: choose "
            f"{name}:{default}"
        )
    return shape + (1,) * (node.torus - len(shape))


def _numbers(name: str, size: str | None, default: str) -> tuple[int, ...]:
    size = default if size is None else size
    if not re.fullmatch(r"[1-9]\d*(x[1-9]\d*)*", size):
        raise ValueError(f"{name}:{size}: expected a size in whole numbers above 0, such as {name}:{default}")
    return tuple(map(int, size.split("x")))


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + "s" * (number != 1)


def _check_options(keys: list[str], text: str, torus: bool) -> None:
    """Raise ValueError if an option is given twice, or has no effect on a torus."""
    twice = next((key for key in keys if keys.count(key) > 1), None)
    if twice:
        raise ValueError(f"{text}: {twice} is given twice")
    idle = next((key for key in keys if key in ("oversubscription", "network", "between")), None)
    if torus and idle:
        raise ValueError(f"{text}: a torus has no switches and no network cards: leave {idle} out")


def _option(option: str, text: str, hardware: Hardware) -> tuple[str, object]:
    """Parse an option: return a field of ClusterSpec and its value."""
    key, _, value = option.partition("=")
    known = ("oversubscription", "network", "inside", "between")
    if key not in known:
        raise ValueError(f"{text}: unknown option {key!r}: {choose(key, known)}")
    if key == "oversubscription":
        try:
            return key, float(value)
        except ValueError:
            raise ValueError(f"{text}: oversubscription: expected a number of at least 1, got {value!r}") from None
    if key == "network":
        return key, value
    if value not in hardware.links:
        raise ValueError(f"{text}: {key}: unknown link {value!r}: {choose(value, hardware.links)}")
    return key, hardware.links[value]


def _most_cubic(count: int, dimensions: int) -> tuple[int, ...]:
    """Return the shape of ``count`` chips whose longest side is shortest."""
    if dimensions == 1:
        return (count,)
    sides = [side for side in range(1, count + 1) if count % side == 0]
    return min((tuple(sorted((side, *_most_cubic(count // side, dimensions - 1)))) for side in sides), key=max)
