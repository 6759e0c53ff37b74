"""A real run on a cluster's clock: every rank does again what it did, in its order, at the speed of other hardware.

Real ranks recorded, in program order, the kernels that they ran, the messages that they posted and waited for, and the
asynchronous collectives that they submitted (trace.py). Here the same programs run against a clock. A kernel takes the
time that an accelerator would take for it, and a message what the links of a topology leave it (network.py). What comes
out is a log like the one that went in, with the times of that cluster: whatever reads or draws one does so with the
other.

A rank has several streams, as on a GPU: the main one, and one for each group that communicates asynchronously. Each
does one thing after another. They compete for links, not for the accelerator: that collectives take some of its
multiprocessors and of its memory's bandwidth is not modelled. Nor is the reduction of what has arrived, which NCCL does
at the speed of the link, nor the time in which a CPU launches kernels: it runs ahead of the GPU.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from minidist.analysis.clock.network import Flow, LinkUse, Network
from minidist.plan.cluster.topology import Edge, Topology
from minidist.trace import Begin, Event, Kernel, Message, PointToPoint, Task

PROGRAM = Begin | Event | Kernel | PointToPoint | Task


@dataclass
class Replayed:
    """A run on a cluster's clock. Seconds count from the moment when all ranks begin.

    Attributes:
        topology: the cluster's.
        logs: for each rank its events, messages and kernels, as ``trace.stop()`` returns them, in ns of this clock.
        flows: all messages, in the order in which they were sent completely.
        links: what each link carried that carried anything.
        kernels: for each rank when it computed, (start, end) in seconds.
        steps: by the name of each step, from when the first rank began it to when the last one ended it.
        seconds: until the last rank is done.
    """

    topology: Topology
    logs: list[list]
    flows: list[Flow]
    links: dict[Edge, LinkUse]
    kernels: list[list[tuple[float, float]]]
    steps: dict[str, tuple[float, float]]
    seconds: float


@dataclass(eq=False)
class Stream:
    """One stream of one rank: what it still has to do, and its clock."""

    rank: int
    number: int
    program: deque = field(default_factory=deque)
    clock: float = 0.0
    spans: list[tuple[Begin, float]] = field(default_factory=list)  # those that are open

    def until(self, time: float, what: str, log: list) -> None:
        """Wait until a time, and note it if that takes any."""
        if time > self.clock:
            if self.number == 0:
                log.append((time, Event(what, "wait", _ns(self.clock), _ns(time))))
            self.clock = time


def replay(logs: Sequence[list], topology: Topology, seconds: Callable[[Kernel], float]) -> Replayed:
    """Replay a run.

    Args:
        logs: for each rank what ``trace.stop()`` returned, of the whole run or of its last steps.
        topology: of as many ranks.
        seconds: how long a kernel takes.

    Raises:
        ValueError: if the topology is of another number of ranks or lacks a link; if a rank waits for a message that is
            in no log.
    """
    if len(logs) != topology.size:
        raise ValueError(f"the run has {len(logs)} ranks, and the topology {topology.size}")
    return Replay(logs, topology, seconds).run()


class Replay:
    """The state of a replay."""

    def __init__(self, logs: Sequence[list], topology: Topology, seconds: Callable[[Kernel], float]) -> None:
        self.seconds, self.network = seconds, Network(topology)
        self.streams = [stream for rank, log in enumerate(logs) for stream in streams_of(rank, log)]
        self.logs: list[list[tuple[float, object]]] = [[] for _ in logs]  # with the time at which each entry ends
        self.kernels: list[list[tuple[float, float]]] = [[] for _ in logs]
        self.steps: dict[str, tuple[float, float]] = {}
        self.flows: list[Flow] = []
        self.known: dict[tuple, float] = {}  # what streams may wait for -> when it was
        self.waiting: dict[tuple, list[Stream]] = {}
        # what was submitted before the log began is not waited for
        self.submitted = {("submit", s.rank, e.runs_on, e.number) for s in self.streams for e in s.program
                          if isinstance(e, Task) and e.call == "submit"}  # fmt: skip

    def run(self) -> Replayed:
        for stream in self.streams:
            self.go_on(stream)
        while ended := self.network.advance():
            for flow in ended:
                self.flows.append(flow)
                name = flow.source, flow.destination, flow.number
                sent = Message("send", *name, flow.nbytes, _ns(flow.start))
                received = Message("receive", *name, flow.nbytes, _ns(flow.arrived))
                self.logs[flow.source].append((flow.start, sent))
                self.logs[flow.destination].append((flow.arrived, received))
                self.tell(("send", *name), flow.sent)
                self.tell(("receive", *name), flow.arrived)
        stuck = next((stream for stream in self.streams if stream.program), None)
        if stuck is not None:
            raise ValueError(
                f"rank {stuck.rank} waits for something that is in no log ({stuck.program[0]}): pass the logs of all "
                "ranks, of one run"
            )
        seconds = max(stream.clock for stream in self.streams)
        logs = [[entry for _, entry in sorted(log, key=itemgetter(0))] for log in self.logs]
        return Replayed(self.network.topology, logs, self.flows, self.network.uses, self.kernels, self.steps, seconds)

    def tell(self, what: tuple, time: float) -> None:
        """Something has happened: streams that wait for it go on."""
        self.known[what] = time
        for stream in self.waiting.pop(what, ()):
            self.go_on(stream)

    def go_on(self, stream: Stream) -> None:
        """Run a stream until it waits for something that has not happened yet."""
        log = self.logs[stream.rank]
        while stream.program:
            entry = stream.program[0]
            awaited = self.awaited(stream, entry)
            if awaited is not None:
                if awaited not in self.known:
                    self.waiting.setdefault(awaited, []).append(stream)
                    return
                stream.until(self.known[awaited], _wait_name(entry, stream.rank), log)
            stream.program.popleft()
            if isinstance(entry, Kernel):
                begin, stream.clock = stream.clock, stream.clock + self.seconds(entry)
                self.kernels[stream.rank].append((begin, stream.clock))
                log.append((stream.clock, entry))
            elif isinstance(entry, Begin):
                stream.spans.append((entry, stream.clock))
            elif isinstance(entry, Event):
                self.close(stream, entry)
            elif isinstance(entry, PointToPoint) and entry.call == "post":
                self.network.post(stream.clock, entry.source, entry.destination, entry.number, entry.nbytes)
            elif isinstance(entry, Task) and entry.call in ("submit", "end"):
                self.tell((entry.call, stream.rank, entry.runs_on, entry.number), stream.clock)

    def close(self, stream: Stream, event: Event) -> None:
        """End a span. Waits of the real run, begun in the log or not, mean nothing here unless they take time here."""
        if not stream.spans or (stream.spans[-1][0].name, stream.spans[-1][0].track) != (event.name, event.track):
            return
        _, begin = stream.spans.pop()
        if event.track == "wait" and begin == stream.clock:
            return
        ended = Event(event.name, event.track, _ns(begin), _ns(stream.clock), event.details, stream.number)
        self.logs[stream.rank].append((stream.clock, ended))
        if event.track == "step":
            first, last = self.steps.get(event.name, (begin, stream.clock))
            self.steps[event.name] = min(first, begin), max(last, stream.clock)

    def awaited(self, stream: Stream, entry: PROGRAM) -> tuple | None:
        """What must have happened before an entry; None for nothing."""
        if isinstance(entry, PointToPoint) and entry.call == "wait":
            return entry.kind, entry.source, entry.destination, entry.number
        if isinstance(entry, Task) and entry.call in ("begin", "wait"):
            task = stream.rank, entry.runs_on, entry.number
            if ("submit", *task) in self.submitted:
                return ("submit" if entry.call == "begin" else "end"), *task
        return None


def streams_of(rank: int, log: list) -> list[Stream]:
    """A rank's streams, with their programs."""
    streams = {0: Stream(rank, 0)}
    for entry in log:
        if isinstance(entry, PROGRAM):
            streams.setdefault(entry.stream, Stream(rank, entry.stream)).program.append(entry)
    return list(streams.values())


def _wait_name(entry: PointToPoint | Task, rank: int) -> str:
    if isinstance(entry, Task):
        return "wait for a collective"
    return f"wait for rank {entry.destination if rank == entry.source else entry.source}"


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)
