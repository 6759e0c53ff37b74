"""Two models of a network, on which recorded programs are replayed (replay.py).

``Ports`` is the textbook's, the alpha-beta model (Hockney, 1994): every rank has one outgoing and one incoming port,
both can be busy at the same time, and a message occupies its two ports for as long as it takes. Messages leave a rank
in the order in which they were posted, and those of different pairs never share a link. So the result is a lower bound,
like the formulas of textbooks; comm/cost.py has those of all collectives.

``SharedLinks`` is a topology whose messages are flows: each moves at the rate that its links leave it. Two ranks have
one connection in each direction, which carries one message at a time, in the order in which they were posted. A
message's last byte leaves when all its bytes have passed, and arrives after the latency of its way: messages in a row
pay it once (the LogGP model; Alexandrov et al., 1995).
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from minidist.overrides import overridable
from minidist.plan.cluster.topology import Edge, Topology

NONE = float("inf")
SAME_TIME = 1e-12  # relative: times that differ by less differ by rounding alone


@dataclass(eq=False, slots=True)
class Flow:
    """A message. Times are in seconds; those that are not known yet are infinite."""

    source: int
    destination: int
    number: int  # as in trace.Message
    nbytes: int
    posted: float
    route: tuple[Edge, ...] = ()
    start: float = NONE
    sent: float = NONE  # the last byte has left
    arrived: float = NONE  # and is there
    left: float = 0.0  # bytes to go, at ``since``
    since: float = 0.0
    rate: float = 0.0
    version: int = 0  # changes with the time at which it is expected to be sent


class Ports:
    """Ranks with one outgoing and one incoming port each.

    Args:
        seconds: (source, destination, nbytes) -> the time that the message occupies its ports.
    """

    def __init__(self, seconds: Callable[[int, int, int], float]) -> None:
        self.seconds = seconds
        self.topology, self.uses = None, {}  # no link is shared
        self._posted: dict[int, deque[Flow]] = {}  # each rank's messages that have not left yet
        self._out: dict[int, float] = {}  # when each rank's ports are free again
        self._in: dict[int, float] = {}

    def post(self, time: float, source: int, destination: int, number: int, nbytes: int) -> None:
        self._posted.setdefault(source, deque()).append(Flow(source, destination, number, nbytes, time))

    def advance(self) -> list[Flow]:
        """Let the earliest message leave, and return it; [] if there is none. No rank may post an earlier one later."""
        ready = [
            (max(flow.posted, self._out.get(flow.source, 0.0), self._in.get(flow.destination, 0.0)), flow)
            for flow in (queue[0] for queue in self._posted.values() if queue)
        ]
        if not ready:
            return []
        start, flow = min(ready, key=lambda one: (one[0], one[1].posted, one[1].source))
        self._posted[flow.source].popleft()
        flow.start = start
        flow.sent = flow.arrived = start + self.seconds(flow.source, flow.destination, flow.nbytes)
        self._out[flow.source] = self._in[flow.destination] = flow.arrived
        return [flow]


@overridable
def fair_rates(routes: Sequence[Sequence[Edge]], bandwidths: Mapping[Edge, float]) -> list[float]:
    """Return the rate of each message, bytes/s, if all share links by max-min fairness.

    Messages that share a bottleneck link get equal shares of it, and no message could have more without taking it from
    one that has no more. That is what TCP aims at, and what simulators of flows assume (Bertsekas and Gallager, "Data
    Networks", 1992, section 6.5.2: progressive filling; SimGrid).

    Args:
        routes: the links that each message crosses, at least one.
        bandwidths: link -> bytes/s, for every one of those links.
    """
    rates = [0.0] * len(routes)
    left = {edge: bandwidths[edge] for route in routes for edge in route}
    sharing: dict[Edge, set[int]] = {edge: set() for edge in left}
    for message, route in enumerate(routes):
        for edge in route:
            sharing[edge].add(message)
    while sharing:
        fullest = min(sharing, key=lambda edge: left[edge] / len(sharing[edge]))
        share = left[fullest] / len(sharing[fullest])
        for message in tuple(sharing[fullest]):
            rates[message] = share
            for edge in routes[message]:
                left[edge] -= share
                sharing[edge].discard(message)
                if not sharing[edge]:
                    del sharing[edge]
    return rates


class SharedLinks:
    """The state of all links at one time, which ``advance`` moves on from one event to the next."""

    def __init__(self, topology: Topology) -> None:
        self.topology = topology
        self.bandwidths = {edge: link.bandwidth for edge, link in topology.links.items()}
        self.uses: dict[Edge, list[tuple[float, float]]] = {}  # when each message was on it
        self._connections: dict[tuple[int, int], deque[Flow]] = {}  # the first of each is in flight
        self._on: dict[Edge, dict[Flow, None]] = {}  # messages in flight, by link, in a fixed order
        self._events: list[tuple[float, int, int, Flow]] = []  # time, a number to break ties, version, message
        self._ties = count()

    def post(self, time: float, source: int, destination: int, number: int, nbytes: int) -> None:
        """Post a message, at a time that is not before that of the last event."""
        route = self.topology.route(source, destination)
        self._expect(Flow(source, destination, number, nbytes, time, route), time)

    def advance(self) -> list[Flow]:
        """Advance to the next time at which messages are sent completely; return them, or [] if there are none left."""
        ended: list[Flow] = []
        while self._events and not ended:
            time = self._events[0][0]
            changed: dict[Edge, None] = {}  # links whose messages need new rates; in an order that never changes
            while self._events and self._events[0][0] <= time * (1 + SAME_TIME):
                _, _, version, flow = heapq.heappop(self._events)
                if version != flow.version:
                    continue  # its rate has changed since
                if flow.start < NONE:
                    self._end(flow, time, changed)
                    ended.append(flow)
                else:
                    self._queue(flow, time, changed)
            self._share(changed, time)
        return ended

    def _queue(self, flow: Flow, time: float, changed: dict[Edge, None]) -> None:
        flow.version += 1
        connection = self._connections.setdefault((flow.source, flow.destination), deque())
        connection.append(flow)
        if len(connection) == 1:
            self._start(flow, time, changed)

    def _start(self, flow: Flow, time: float, changed: dict[Edge, None]) -> None:
        flow.start = flow.since = time
        flow.left = float(flow.nbytes)
        for edge in flow.route:
            self._on.setdefault(edge, {})[flow] = None
            changed[edge] = None

    def _end(self, flow: Flow, time: float, changed: dict[Edge, None]) -> None:
        flow.sent = time
        flow.version += 1
        flow.arrived = time + self.topology.latency(flow.source, flow.destination)
        for edge in flow.route:
            del self._on[edge][flow]
            changed[edge] = None
            self.uses.setdefault(edge, []).append((flow.start, time))
        connection = self._connections[flow.source, flow.destination]
        connection.popleft()
        if connection:
            self._start(connection[0], time, changed)

    def _share(self, changed: dict[Edge, None], time: float) -> None:
        """Give new rates to all messages that a change can reach, from link to link."""
        flows: dict[Flow, None] = {}
        edges = list(changed)
        seen = set(edges)
        for edge in edges:  # grows on the way
            for flow in self._on[edge]:
                if flow not in flows:
                    flows[flow] = None
                    edges += [other for other in flow.route if other not in seen]
                    seen.update(flow.route)
        for flow, rate in zip(flows, fair_rates([flow.route for flow in flows], self.bandwidths), strict=True):
            flow.left = max(0.0, flow.left - flow.rate * (time - flow.since))
            flow.since, flow.rate = time, rate
            flow.version += 1
            self._expect(flow, time + flow.left / rate)

    def _expect(self, flow: Flow, time: float) -> None:
        heapq.heappush(self._events, (time, next(self._ties), flow.version, flow))
