"""One recorded training step on the clocks of several clusters; then tensor-parallel groups that lie across nodes.

The bug deals the ranks to the nodes in turn. Every message is sent as before and every result has the same bits, so no
test of results finds it: only time does. It happens if another dimension of the mesh changes fastest. Megatron-LM's
default order has tp first for this reason; in a mesh of huggingface/diffusers (pull request 14725) context parallelism
changes fastest, and "a TP group takes one rank out of each run" of neighbours.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from minidist.analysis.networks import Flow
from minidist.analysis.replay import Pace, Replayed, replay
from minidist.analysis.report import StepReport, bounds, clipped, length, report
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.topologies import topology_of
from minidist.plan.cluster.topology import Topology
from minidist.show.demos.cluster.load import Load
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout

DP = 2  # data-parallel ranks, and nodes: each node can have a whole copy of the model
OVERSUBSCRIPTION = 4  # of the congested uplink
ONE, TWO, CONGESTED = "one node", "two nodes", "congested uplink"
KINDS = ("tp group 0", "tp group 1", "dp")  # of messages


@dataclass(frozen=True)
class Step:
    """Recorded step on one cluster.

    Args:
        name: name of the cluster, in a word or two.
        spec: the cluster. topology: its links, and which rank sits on which chip.
        replayed: the run on the cluster's clock. report: report of the step, by this clock.
        layout: layout of the run.
    """

    name: str
    spec: ClusterSpec
    topology: Topology
    replayed: Replayed
    report: StepReport
    layout: Layout

    @property
    def ranks(self) -> int:
        return self.topology.size

    @property
    def seconds(self) -> float:
        return self.report.seconds

    @cached_property
    def start(self) -> float:
        """Time at which the step begins, on the clock of the whole run."""
        return bounds(self.replayed, None)[0]

    @cached_property
    def load(self) -> Load:
        return Load(self.replayed.flows, self.topology, lambda flow: kind_of(flow, self.layout))

    def computing(self, rank: int, since: float, until: float) -> float:
        """Return the share of a stretch of the step in which a rank computes; times count from the step's start."""
        kernels = clipped(self.replayed.kernels[rank], self.start + since, self.start + until)
        return length(kernels) / (until - since)

    def crosses(self, flow: Flow) -> bool:
        """Return whether a message goes to another node."""
        return self.topology.nodes[flow.source] != self.topology.nodes[flow.destination]

    def crossing_bytes(self, tensor_parallel: bool) -> int:
        """Return the bytes sent to other nodes within tp groups, or else within dp groups."""
        return sum(
            flow.nbytes
            for flow in self.replayed.flows
            if self.crosses(flow) and is_tensor_parallel(flow, self.layout) == tensor_parallel
        )


def tp_group(rank: int, layout: Layout) -> int:
    """Return the number of a rank's tensor-parallel group: in the mesh, tp changes fastest."""
    return rank // layout.tp


def is_tensor_parallel(flow: Flow, layout: Layout) -> bool:
    return tp_group(flow.source, layout) == tp_group(flow.destination, layout)


def kind_of(flow: Flow, layout: Layout) -> str:
    """Return the kind of a message, one of KINDS."""
    return KINDS[tp_group(flow.source, layout)] if is_tensor_parallel(flow, layout) else KINDS[-1]


def layout_of(ranks: int) -> Layout:
    return Layout(dp=DP, tp=ranks // DP)


def config_of(width: int, seed: int) -> TrainConfig:
    """Configure one layer and one step, with enough tokens that tp sends more than dp."""
    return TrainConfig(
        layers=1, heads=4, width=width, context=256, global_batch=4 * DP, micro_batch=4, steps=1, seed=seed
    )


def clusters_of(ranks: int) -> dict[str, ClusterSpec]:
    """Return the clusters on whose clocks the run is replayed."""
    nodes = f"h100:{DP}x{ranks // DP}"
    texts = {ONE: f"h100:1x{ranks}", TWO: nodes, CONGESTED: f"{nodes},oversubscription={OVERSUBSCRIPTION}"}
    return {name: ClusterSpec.parse(text) for name, text in texts.items()}


def step_on(name: str, logs: Sequence[list], spec: ClusterSpec, topology: Topology, layout: Layout) -> Step:
    """Replay the run on a cluster's clock."""
    replayed = replay(logs, topology, Pace(spec.accelerator).seconds)
    return Step(name, spec, topology, replayed, report(replayed), layout)


def steps_of(logs: Sequence[list], layout: Layout) -> list[Step]:
    """Replay the run on each cluster, with the ranks on the chips in order.

    Raises:
        RuntimeError: if the step is not longer on each cluster than on the one before, or if a message of tensor
            parallelism leaves its node.
    """
    steps = [step_on(n, logs, spec, topology_of(spec), layout) for n, spec in clusters_of(layout.world_size).items()]
    for before, after in pairwise(steps):
        if after.seconds <= before.seconds:
            raise RuntimeError(f"the step is not longer on {after.spec} than on {before.spec}: choose another size")
    if any(step.crossing_bytes(tensor_parallel=True) for step in steps):
        raise RuntimeError("a message of tensor parallelism leaves its node: this is a bug in minidist")
    return steps


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
