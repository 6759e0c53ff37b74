"""A report on one step of a replay: how long it takes, what it waits for, which link is full, what is hidden."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.analysis.networks import Flow
from minidist.analysis.replay import Replayed
from minidist.plan.cluster.topology import Edge, Topology

Interval = tuple[float, float]


@dataclass(frozen=True)
class Busy:
    """One direction of a link during a step."""

    edge: Edge
    seconds: float  # in which some message was on it
    nbytes: int
    utilization: float  # nbytes over what it could have carried in the step

    def __str__(self) -> str:
        return " -> ".join(self.edge)


@dataclass(frozen=True)
class RankTime:
    """One rank's time in a step, in seconds: it computes, or it waits for messages or other ranks."""

    computing: float
    waiting: float
    communicating: float  # some message of it was in flight
    hidden: float  # and it computed at the same time

    @property
    def hidden_share(self) -> float:
        """The share of the communication that is hidden under computing: 0 to 1; 0 if there was none."""
        return self.hidden / self.communicating if self.communicating else 0.0


@dataclass(frozen=True)
class StepReport:
    """One step on a cluster's clock, from the first rank's beginning to the last one's end.

    Bytes are those of messages that leave in that time.
    """

    seconds: float
    ranks: list[RankTime]
    links: list[Busy]  # all that carried something, the fullest first
    slowed: float  # the largest factor by which shared links slowed a message down; 1 if they slowed none
    bytes_between_nodes: int


def report(replayed: Replayed, step: str | None = None) -> StepReport:
    """Report on one step of a replay.

    Args:
        step: name of the step's span, such as "step 3"; None for the last step, or the whole run if it has no steps.

    Raises:
        ValueError: if there is no such step.
    """
    topology = replayed.topology
    assert topology is not None, "the replay was on Ports, which have no links"
    start, end = bounds(replayed, step)
    near = [flow for flow in replayed.flows if flow.start < end and flow.arrived > start]
    flows = [flow for flow in near if flow.start >= start]
    links = []
    for edge, intervals in replayed.links.items():
        seconds = length(clipped(intervals, start, end))
        nbytes = sum(flow.nbytes for flow in flows if edge in flow.route)
        if nbytes:
            capacity = topology.links[edge].bandwidth * (end - start)
            links.append(Busy(edge, seconds, nbytes, nbytes / capacity if capacity else 0.0))
    links.sort(key=lambda busy: (-busy.utilization, -busy.seconds, busy.edge))
    ranks = [rank_time(replayed, rank, near, start, end) for rank in range(topology.size)]
    alone = [slowdown(flow, topology) for flow in flows if flow.nbytes]
    crossing = [flow.nbytes for flow in flows if topology.nodes[flow.source] != topology.nodes[flow.destination]]
    return StepReport(end - start, ranks, links, max(alone, default=1.0), sum(crossing))


def bounds(replayed: Replayed, step: str | None) -> Interval:
    """Return when the first rank begins a step and when the last one ends it."""
    if not replayed.steps and step is None:
        return 0.0, replayed.seconds
    name = step or list(replayed.steps)[-1]
    if name not in replayed.steps:
        raise ValueError(f"there is no {step!r} in the log: choose from {', '.join(replayed.steps) or 'none'}")
    return replayed.steps[name]


def rank_time(replayed: Replayed, rank: int, flows: Sequence[Flow], start: float, end: float) -> RankTime:
    """Return how one rank spends the time between two moments."""
    computing = clipped(replayed.kernels[rank], start, end)
    in_flight = [(flow.start, flow.arrived) for flow in flows if rank in (flow.source, flow.destination)]
    communicating = clipped(in_flight, start, end)
    total = length(computing)
    return RankTime(total, end - start - total, length(communicating), length(both(computing, communicating)))


def slowdown(flow: Flow, topology: Topology) -> float:
    """Return how many times as long a message took as it would have with its links for itself."""
    alone = flow.nbytes / min(topology.links[edge].bandwidth for edge in flow.route)
    return (flow.sent - flow.start) / alone


def clipped(intervals: Sequence[Interval], start: float, end: float) -> list[Interval]:
    """Return the parts of intervals that lie between two moments, joined where they touch."""
    joined: list[Interval] = []
    for low, high in sorted((max(low, start), min(high, end)) for low, high in intervals):
        if low >= high:
            continue
        if joined and low <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], high)
        else:
            joined.append((low, high))
    return joined


def both(first: Sequence[Interval], second: Sequence[Interval]) -> list[Interval]:
    """Return the intervals that two lists, each as ``clipped`` returns it, have in common."""
    found, i, j = [], 0, 0
    while i < len(first) and j < len(second):
        low, high = max(first[i][0], second[j][0]), min(first[i][1], second[j][1])
        if low < high:
            found.append((low, high))
        if first[i][1] < second[j][1]:
            i += 1
        else:
            j += 1
    return found


def length(intervals: Sequence[Interval]) -> float:
    return sum(high - low for low, high in intervals)
