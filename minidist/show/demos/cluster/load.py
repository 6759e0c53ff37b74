"""What each link carries at any time: the rates of the messages on it, as the clock's network shares its links."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from minidist.analysis.clock.fairness import fair_rates
from minidist.analysis.clock.network import Flow
from minidist.plan.cluster.topology import Edge, Topology

FULL = 1 - 1e-9  # of the bandwidth: a few roundings below all of it


class Load:
    """The load of all links over a run. The messages in flight are the same between any two neighbouring ``times``."""

    def __init__(self, flows: Sequence[Flow], topology: Topology) -> None:
        bandwidths = {edge: link.bandwidth for edge, link in topology.links.items()}
        flows = [flow for flow in flows if flow.sent > flow.start]
        self.times = sorted({time for flow in flows for time in (flow.start, flow.sent)})
        self.loads: list[dict[Edge, float]] = []  # between two times: the share of its bandwidth that each link uses
        for start, end in pairwise(self.times):
            routes = [flow.route for flow in flows if flow.start <= start and end <= flow.sent]
            load: dict[Edge, float] = {}
            for route, rate in zip(routes, fair_rates(routes, bandwidths), strict=True):
                for edge in route:
                    load[edge] = load.get(edge, 0.0) + rate / bandwidths[edge]
            self.loads.append(load)

    def _between(self, since: float, until: float) -> Iterator[tuple[float, dict[Edge, float]]]:
        """The stretches between two times: seconds, and loads."""
        for (start, end), load in zip(pairwise(self.times), self.loads, strict=True):
            if start < until and end > since:
                yield min(end, until) - max(start, since), load

    def mean(self, edge: Edge, since: float, until: float) -> float:
        """The share of what a link could carry between two times that it carried."""
        return sum(seconds * load.get(edge, 0.0) for seconds, load in self._between(since, until)) / (until - since)

    def full(self, edge: Edge, since: float, until: float) -> float:
        """The share of the time between two times in which a link was full."""
        seconds = sum(seconds for seconds, load in self._between(since, until) if load.get(edge, 0.0) >= FULL)
        return seconds / (until - since)
