"""The simulator: a recorded run repeats what it did, in the same order, at the speed of other hardware.

Real ranks recorded, in program order, the kernels that they ran, the messages that they posted and waited for, and the
asynchronous collectives that they submitted (trace.py). Here the same programs run against a clock. A kernel takes the
time that an accelerator would take for it, and a message what a model of a network says (networks.py). The result is a
log like the recorded one, with the times of that cluster, so code that reads or draws the one also takes the other.

    as_if      on a cluster's accelerators and links
    flights    messages alone, in the textbook's model; if each takes one second, the clock counts an algorithm's steps

A rank has several streams, as on a GPU: the main one, and one for each group that communicates asynchronously. Each
does one thing after another. They compete for links, not for the accelerator. Three things are not modelled: the
multiprocessors and the memory bandwidth that collectives take; the reduction of what has arrived, which NCCL does at
the speed of the link; and the time in which a CPU launches kernels, because it runs ahead of the GPU.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from minidist.analysis.networks import Flow, Ports, SharedLinks
from minidist.plan.cluster.hardware import Accelerator, ClusterSpec
from minidist.plan.cluster.roofline import kernel_seconds
from minidist.plan.cluster.topologies import topology_of
from minidist.plan.cluster.topology import Edge, Topology
from minidist.trace import Begin, Event, Kernel, Message, PointToPoint, Task

FLOPS_EFFICIENCY = 0.7
MEMORY_EFFICIENCY = 0.8
PROGRAM = Begin | Event | Kernel | PointToPoint | Task


@dataclass
class Replayed:
    """A run on a cluster's clock. Seconds count from the moment when all ranks begin."""

    topology: Topology | None  # the cluster's; None for ``Ports``
    logs: list[list]  # each rank's events, messages and kernels, as ``trace.stop()`` has them, in ns of this clock
    flows: list[Flow]  # all messages, in the order in which they were sent completely
    links: dict[Edge, list[tuple[float, float]]]  # when each message was on a link, for links that had any
    kernels: list[list[tuple[float, float]]]  # when each rank computed, (start, end) in seconds
    steps: dict[str, tuple[float, float]]  # name -> (when the first rank began it, when the last one ended it)
    seconds: float  # until the last rank is done


@dataclass(eq=False)
class Stream:
    """One stream of one rank: what it still has to do, and its clock."""

    rank: int
    number: int
    program: deque = field(default_factory=deque)
    clock: float = 0.0
    spans: list[tuple[Begin, float]] = field(default_factory=list)  # open spans, with the time at which they began


@dataclass(frozen=True)
class Flight:
    """One message of a run. Times count from the beginning of the run, in the unit of the replay."""

    source: int
    destination: int
    nbytes: int
    start: float
    end: float


def replay(
    logs: Sequence[list], network: Topology | Ports, seconds: Callable[[Kernel], float] = lambda kernel: 0.0
) -> Replayed:
    """Replay a run.

    Args:
        logs: each rank's log, as ``trace.stop()`` returned it, of the whole run or of its last steps.
        network: a topology with one rank for each log, or ports.
        seconds: how long a kernel takes.

    Raises:
        ValueError: if the topology has another number of ranks or lacks a link; if a rank waits for a message that is
            in no log.
    """
    if isinstance(network, Topology) and len(logs) != network.size:
        raise ValueError(f"the run has {len(logs)} ranks, but the topology has {network.size}")
    return Replay(logs, network, seconds).run()


def flights(logs: Sequence[list], seconds: Callable[[int], float] = lambda nbytes: 1.0) -> list[Flight]:
    """Return the messages of a run as the textbook's model has them, in the order in which they leave.

    Computing takes no time there.

    Args:
        logs: as for ``replay``.
        seconds: function from a message's bytes to its time, such as alpha + beta * nbytes.
    """
    replayed = replay(logs, Ports(lambda source, destination, nbytes: seconds(nbytes)))
    return [Flight(f.source, f.destination, f.nbytes, f.start, f.arrived) for f in replayed.flows]


def steps(logs: Sequence[list]) -> int:
    """Return the number of steps of a run: a message takes one, and a rank can send one and receive one at a time."""
    return int(max((flight.end for flight in flights(logs)), default=0))


@dataclass(frozen=True)
class Pace:
    """The pace of kernels: each takes the longer of its arithmetic and memory accesses, at a share of the peak rates.

    Args:
        flops_efficiency, memory_efficiency: those shares. The defaults are assumptions for large, well-written kernels
            (FlashAttention-3 reaches up to 75 % of an H100's FLOP/s; Shah et al., 2024).
    """

    accelerator: Accelerator
    flops_efficiency: float = FLOPS_EFFICIENCY
    memory_efficiency: float = MEMORY_EFFICIENCY

    def seconds(self, kernel: Kernel) -> float:
        shares = self.flops_efficiency, self.memory_efficiency
        return kernel_seconds(self.accelerator, kernel.flops, kernel.nbytes, kernel.precision, *shares)


def as_if(
    logs: Sequence[list],
    cluster: str | ClusterSpec,
    flops_efficiency: float = FLOPS_EFFICIENCY,
    memory_efficiency: float = MEMORY_EFFICIENCY,
) -> Replayed:
    """Replay a recorded run on a cluster's clock.

    Rank 0 is the first accelerator of the first node, and so on.

    Args:
        logs: each rank's log: what ``trace.stop()`` returned, or ``RankResult.log`` (``RunOptions(trace=True)``).
        cluster: such as ``h100:2x8``: see ``ClusterSpec.parse``.
        flops_efficiency, memory_efficiency: the shares of the accelerator's peak rates that kernels reach.

    Raises:
        ValueError: if the cluster is unknown, has another number of accelerators than there are ranks, or the
            accelerator cannot compute in the run's precision.
    """
    spec = ClusterSpec.parse(cluster) if isinstance(cluster, str) else cluster
    spec.check(len(logs))
    pace = Pace(spec.accelerator, flops_efficiency, memory_efficiency)
    return replay(logs, topology_of(spec), pace.seconds)


class Replay:
    """The state of a replay."""

    def __init__(self, logs: Sequence[list], network: Topology | Ports, seconds: Callable[[Kernel], float]) -> None:
        self.seconds = seconds
        self.network = network if isinstance(network, Ports) else SharedLinks(network)
        self.streams = [stream for rank, log in enumerate(logs) for stream in streams_of(rank, log)]
        self.logs: list[list[tuple[float, object]]] = [[] for _ in logs]  # with the time at which each entry ends
        self.kernels: list[list[tuple[float, float]]] = [[] for _ in logs]
        self.steps: dict[str, tuple[float, float]] = {}
        self.flows: list[Flow] = []
        self.known: dict[tuple, float] = {}  # what streams may wait for -> when it happened
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
                "ranks of one run"
            )
        seconds = max((stream.clock for stream in self.streams), default=0.0)
        logs = [[entry for _, entry in sorted(log, key=itemgetter(0))] for log in self.logs]
        network = self.network
        return Replayed(network.topology, logs, self.flows, network.uses, self.kernels, self.steps, seconds)

    def tell(self, what: tuple, time: float) -> None:
        """Record when something happened, and run the streams that wait for it."""
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
                time = self.known[awaited]
                if time > stream.clock and stream.number == 0:
                    log.append((time, Event(_wait_name(entry, stream.rank), "wait", _ns(stream.clock), _ns(time))))
                stream.clock = max(stream.clock, time)
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
        """End a span. A wait of the real run, begun in the log or not, is dropped unless it takes time here."""
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
        """Return what must happen before an entry; None if nothing must."""
        if isinstance(entry, PointToPoint) and entry.call == "wait":
            return entry.kind, entry.source, entry.destination, entry.number
        if isinstance(entry, Task) and entry.call in ("begin", "wait"):
            task = stream.rank, entry.runs_on, entry.number
            if ("submit", *task) in self.submitted:
                return ("submit" if entry.call == "begin" else "end"), *task
        return None


def streams_of(rank: int, log: list) -> list[Stream]:
    """Return a rank's streams, with their programs."""
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
