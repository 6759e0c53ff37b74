"""Load of each link over time: the rates of its messages, as the clock's network shares bandwidth among them."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

from minidist.analysis.networks import Flow, fair_rates
from minidist.plan.cluster.topology import Edge, Topology

FULL = 1 - 1e-9  # of the bandwidth: a few roundings below all of it


class Load:
    """Load of all links over a run. Between two neighbouring ``times``, the messages in flight do not change.

    Args:
        kind_of: message -> its kind, so that the load of one kind can be asked for.
    """

    def __init__(self, flows: Sequence[Flow], topology: Topology, kind_of: Callable[[Flow], str] = str) -> None:
        bandwidths = {edge: link.bandwidth for edge, link in topology.links.items()}
        flows = [flow for flow in flows if flow.sent > flow.start]
        self.times = sorted({time for flow in flows for time in (flow.start, flow.sent)})
        self.loads: list[dict[Edge, float]] = []  # between two times: the share of its bandwidth that each link uses
        self.kinds: list[dict[tuple[Edge, str], float]] = []  # and the part of it that each kind of message uses
        for start, end in pairwise(self.times):
            moving = [flow for flow in flows if flow.start <= start and end <= flow.sent]
            load: dict[Edge, float] = {}
            kinds: dict[tuple[Edge, str], float] = {}
            for flow, rate in zip(moving, fair_rates([flow.route for flow in moving], bandwidths), strict=True):
                for edge in flow.route:
                    share, one = rate / bandwidths[edge], (edge, kind_of(flow))
                    load[edge] = load.get(edge, 0.0) + share
                    kinds[one] = kinds.get(one, 0.0) + share
            self.loads.append(load)
            self.kinds.append(kinds)

    def _between(self, shares: Sequence[dict], since: float, until: float) -> Iterator[tuple[float, dict]]:
        """Yield the stretches between two times as (seconds, shares)."""
        for (start, end), each in zip(pairwise(self.times), shares, strict=True):
            if start < until and end > since:
                yield min(end, until) - max(start, since), each

    def mean(self, edge: Edge, since: float, until: float, kind: str | None = None) -> float:
        """Return the mean share of a link's bandwidth in use between two times, by messages of one kind or of all."""
        shares, key = (self.loads, edge) if kind is None else (self.kinds, (edge, kind))
        found = sum(seconds * each.get(key, 0.0) for seconds, each in self._between(shares, since, until))
        return found / (until - since)

    def full(self, edge: Edge, since: float, until: float) -> float:
        """Return the share of the time between two times in which a link was full."""
        between = self._between(self.loads, since, until)
        return sum(seconds for seconds, load in between if load.get(edge, 0.0) >= FULL) / (until - since)
