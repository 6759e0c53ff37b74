"""``minidist train --as-if``: the run on a cluster's clock, as flags and as a table."""

import argparse
from dataclasses import asdict, dataclass, replace

from rich.console import Console

from minidist.analysis.replay import FLOPS_EFFICIENCY, MEMORY_EFFICIENCY, Replayed, as_if
from minidist.analysis.report import StepReport, report
from minidist.cli.flags import real
from minidist.cli.output import titled
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.roofline import peak_flops
from minidist.plan.cluster.topologies import topology_of
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run

FULLEST = 4  # links that are listed
MOSTLY, EMPTY = 0.8, 0.3  # shares of a step at which the words change
CROWDED, SELDOM = 1.5, 0.1  # slowing of messages that is reported, if a link is in use for this share of a step


@dataclass(frozen=True)
class Wanted:
    """The cluster of ``--as-if``, and the shares of its peak rates that kernels reach."""

    cluster: ClusterSpec
    flops_efficiency: float
    memory_efficiency: float

    def on_nodes(self, layout: Layout) -> Layout:
        """Return the layout with the cluster's nodes.

        Raises:
            ValueError: if it has nodes of another size.
        """
        if layout.node_size not in (0, self.cluster.node_size):
            raise ValueError(
                f"--node-size {layout.node_size} contradicts --as-if {self.cluster}, whose nodes have "
                f"{self.cluster.node_size}: leave one out"
            )
        return replace(layout, node_size=self.cluster.node_size if self.cluster.nodes > 1 else 0)


@dataclass(frozen=True)
class OnCluster:
    """A run on a cluster's clock: all of it, and its last step."""

    wanted: Wanted
    replayed: Replayed
    step: StepReport

    def as_dict(self) -> dict:
        """Return the content that ``--json`` writes."""
        step = self.step
        links = [{"link": str(link)} | asdict(link) for link in step.links]
        return {
            "cluster": str(self.wanted.cluster),
            "flops_efficiency": self.wanted.flops_efficiency,
            "memory_efficiency": self.wanted.memory_efficiency,
            "seconds_per_step": step.seconds,
            "ranks": [asdict(rank) | {"hidden_share": rank.hidden_share} for rank in step.ranks],
            "links": links,
            "slowed": step.slowed,
            "bytes_between_nodes": step.bytes_between_nodes,
        }


def add_as_if(command: argparse.ArgumentParser) -> None:
    group = command.add_argument_group("a cluster's clock")
    group.add_argument(
        "--as-if",
        metavar="CLUSTER",
        help="say what a step would take on h100:2x8 (two nodes of eight), or on own.toml:2x8: see minidist hardware. "
        "--trace and --png then show the messages and kernels at that cluster's speed",
    )
    group.add_argument(
        "--efficiency",
        type=real,
        default=FLOPS_EFFICIENCY,
        metavar="X",
        help="share of the peak FLOP/s that matrix products reach there, with --as-if (default: %(default)s)",
    )
    group.add_argument(
        "--memory-efficiency",
        type=real,
        default=MEMORY_EFFICIENCY,
        metavar="X",
        help="share of the memory bandwidth that kernels reach there, with --as-if (default: %(default)s)",
    )


def as_if_of(options: argparse.Namespace, config: TrainConfig, layout: Layout) -> Wanted | None:
    """Return the cluster on which to replay the run; None without ``--as-if``.

    Raises:
        ValueError: before a rank starts, if the cluster is unknown, is not filled by the layout, lacks a link, or
            cannot compute in the run's precision; or if an efficiency is not above 0 and at most 1.
    """
    shares = {"--efficiency": options.efficiency, "--memory-efficiency": options.memory_efficiency}
    for flag, share in shares.items():
        if not 0 < share <= 1:
            raise ValueError(f"{flag} must be above 0 and at most 1, got {share:g}")
    if options.as_if is None:
        if (options.efficiency, options.memory_efficiency) != (FLOPS_EFFICIENCY, MEMORY_EFFICIENCY):
            raise ValueError("--efficiency and --memory-efficiency apply to --as-if: add --as-if CLUSTER")
        return None
    cluster = ClusterSpec.parse(options.as_if)
    cluster.check(layout.world_size)
    peak_flops(cluster.accelerator, config.precision)
    topology_of(cluster)
    return Wanted(cluster, *shares.values())


def on_cluster(wanted: Wanted, result: Run) -> OnCluster:
    """Replay a run that was traced.

    Raises:
        ValueError: if it cannot be replayed, or took no step.
    """
    if not result.steps_here:
        raise ValueError("the checkpoint is of the run's last step, so there is none to replay: leave --as-if out")
    logs = [rank.log for rank in result.ranks]
    replayed = as_if(logs, wanted.cluster, wanted.flops_efficiency, wanted.memory_efficiency)
    return OnCluster(wanted, replayed, report(replayed))


def print_on_cluster(console: Console, found: OnCluster) -> None:
    wanted, step = found.wanted, found.step
    columns = ("rank", "computing", "waiting", "messages in flight", "hidden behind computing")
    table = titled(f"one step as if on {wanted.cluster}, microseconds", right=columns)
    for number, rank in enumerate(step.ranks):
        times = (f"{seconds * 1e6:,.1f}" for seconds in (rank.computing, rank.waiting, rank.communicating))
        table.add_row(str(number), *times, f"{rank.hidden_share:.0%}")
    console.print(table)
    links = titled("its fullest links, one direction each", ["link"], ("bytes", "microseconds in use", "utilization"))
    for link in step.links[:FULLEST]:
        links.add_row(str(link), f"{link.nbytes:,}", f"{link.seconds * 1e6:,.1f}", f"{link.utilization:.0%}")
    if step.links:
        console.print(links)
    console.print(
        f"one step would take {step.seconds * 1e6:,.1f} µs on {wanted.cluster}, {limit(step)}", soft_wrap=True
    )
    console.print(
        f"assumed: kernels reach {wanted.flops_efficiency:.0%} of the FLOP/s and {wanted.memory_efficiency:.0%} of the "
        f"memory bandwidth of the {wanted.cluster.accelerator.name}",
        soft_wrap=True,
    )


def limit(step: StepReport) -> str:
    """Say in words what limits the time of a step."""
    computing = max(rank.computing for rank in step.ranks) / step.seconds
    told = f"{computing:.0%} of it computing on the busiest rank"
    if computing > MOSTLY or not step.links:
        return told
    if step.slowed > CROWDED and max(link.seconds for link in step.links) > SELDOM * step.seconds:
        return f"{told}; messages that share links took up to {step.slowed:.1f} times as long as alone"
    fullest = step.links[0]
    if fullest.utilization < EMPTY:
        least = f"no link carried more than {fullest.utilization:.0%} of what it could"
        return f"{told}; {least}: ranks wait for each other, or for the latency of small messages"
    return f"{told}; the fullest link, {fullest}, carried {fullest.utilization:.0%} of what it could"
