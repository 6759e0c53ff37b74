"""Accelerators, links and nodes: the numbers that vendors publish, and one's own.

They are data (hardware.toml), with a source beside each. A file of one's own has the same tables; its entries come on
top of these.
"""

from dataclasses import dataclass, field
from pathlib import Path

DATA = Path(__file__).with_suffix(".toml")


@dataclass(frozen=True)
class Accelerator:
    """One chip. All rates are dense: without the factor of two for matrices half of whose elements are zero.

    Attributes:
        flops: FLOP/s by precision ("fp32" without tensor cores, "tf32", "bf16", "fp16", "fp8", ...).
        sparse_flops: the same of 2:4 sparse matrices, which vendors like to print.
        memory: bytes. memory_bandwidth: bytes/s.
        sms: streaming multiprocessors, or what stands for them. cores: for float32. clock: Hz, boosted.
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
    clock: float = 0.0


@dataclass(frozen=True)
class LinkType:
    """One direction of a link. bandwidth: bytes/s. latency: s, of a message without content."""

    name: str
    bandwidth: float
    latency: float
    source: str


@dataclass(frozen=True)
class NodeType:
    """A server: ``size`` accelerators, each with a link to the others inside and one to the network."""

    name: str
    accelerator: str
    size: int
    inside: str
    between: str
    source: str


@dataclass(frozen=True)
class Hardware:
    """All that is known, by name."""

    accelerators: dict[str, Accelerator]
    links: dict[str, LinkType]
    nodes: dict[str, NodeType]


@dataclass(frozen=True)
class ClusterSpec:
    """Nodes of one kind and the network between them: ``h100:2x8`` is two nodes of eight H100s.

    Attributes:
        oversubscription: how many times as much as they can carry the links above a node's would need to carry if all
            accelerators sent to other nodes at once; 1 is a fat tree that never is the bottleneck.
    """

    accelerator: Accelerator
    nodes: int
    node_size: int
    inside: LinkType
    between: LinkType
    oversubscription: float = 1.0

    @property
    def world_size(self) -> int:
        return self.nodes * self.node_size
