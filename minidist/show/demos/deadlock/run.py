"""Programs in which ranks on a ring pass an array to their right neighbours, and the state of the ranks meanwhile."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minidist import trace
from minidist.comm.failures import Deadlock
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import P2POp, barrier, batch_isend_irecv, irecv, isend, recv, send
from minidist.comm.runtime.launch import Cluster
from minidist.comm.transports.messages import HEADER_BYTES

QUEUE_BYTES = 8 << 10
FITS = (QUEUE_BYTES - HEADER_BYTES) // 8  # numbers: the longest message that fits a queue
PAUSE = 0.02  # seconds between the starts of two ranks: events that come one by one are easier to follow
BUG = "every rank sends before it receives, and a message is larger than a queue"


@dataclass(frozen=True)
class Event:
    """Event of one rank: it enters a call, or its program ends.

    Args:
        time: time in ns.
        call: the call as the picture shows it; "" at the end of the program.
        sends, receives: messages that the call posts, as (source, destination).
    """

    time: int
    rank: int
    call: str
    sends: tuple[tuple[int, int], ...] = ()
    receives: tuple[tuple[int, int], ...] = ()


def send_first(world: ProcessGroup, x: np.ndarray, y: np.ndarray, enters: Callable) -> None:
    """Send right, then receive from the left: no rank receives until its own message has been taken."""
    _send_right(world, x, enters)
    _receive_left(world, y, enters)


def odd_receive_first(world: ProcessGroup, x: np.ndarray, y: np.ndarray, enters: Callable) -> None:
    """Let odd ranks receive before they send, which breaks the cycle."""
    if world.rank % 2 == 0:
        return send_first(world, x, y, enters)
    _receive_left(world, y, enters)
    _send_right(world, x, enters)


def posted_together(world: ProcessGroup, x: np.ndarray, y: np.ndarray, enters: Callable) -> None:
    """Post the send and the receive together, as ring collectives do, so that neither waits for the other."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    enters(f"send to {right}, recv from {left}", to=right, source=left)
    for work in batch_isend_irecv([P2POp(isend, x, right, world), P2POp(irecv, y, left, world)]):
        work.wait()


def _send_right(world: ProcessGroup, x: np.ndarray, enters: Callable) -> None:
    right = (world.rank + 1) % world.size
    enters(f"send to {right}", to=right)
    send(x, right, world)


def _receive_left(world: ProcessGroup, y: np.ndarray, enters: Callable) -> None:
    left = (world.rank - 1) % world.size
    enters(f"recv from {left}", source=left)
    recv(y, left, world)


def numbers(rank: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng((seed, rank)).standard_normal(size)


def rank_of_a_ring(world: ProcessGroup, program: Callable, size: int, seed: int) -> tuple[np.ndarray, list]:
    """Run a program on this rank and report its events; return what the rank received, and its log."""
    x, y = numbers(world.rank, size, seed), np.zeros(size)

    def enters(call: str, to: int | None = None, source: int | None = None) -> None:
        sends = () if to is None else ((world.rank, to),)
        receives = () if source is None else ((source, world.rank),)
        world.report(Event(time.perf_counter_ns(), world.rank, call, sends, receives))

    barrier(world)  # a rank's first run starts more slowly
    late = np.random.default_rng(seed).permutation(world.size)[world.rank]
    time.sleep(PAUSE * late)
    trace.start()
    try:
        with trace.span(program.__name__, "communication"):
            program(world, x, y, enters)
    finally:
        log = trace.stop()
    enters("")
    return y, log


def events_of(cluster: Cluster, program: Callable, size: int, seed: int) -> tuple[list[Event], list[list]]:
    """Run a program that ends; return its events and the ranks' logs.

    Raises:
        RuntimeError: if a rank does not receive what its neighbour sent.
    """
    events: list = []
    results = cluster.run(
        rank_of_a_ring, program, size, seed, timeout=60, on_report=lambda _, event: events.append(event)
    )
    for rank, (found, _) in enumerate(results):
        if found.tobytes() != numbers((rank - 1) % len(results), size, seed).tobytes():
            raise RuntimeError(
                f"{program.__name__}: rank {rank} did not receive what its neighbour sent: this is a bug in minidist"
            )
    return events, [log for _, log in results]


def deadlock(cluster: Cluster, size: int, seed: int) -> tuple[list[Event], Deadlock, float]:
    """Run ``send_first`` until it deadlocks; return its events, the error, and the seconds from the last event to it.

    Raises:
        RuntimeError: if it does not deadlock.
    """
    events: list = []
    try:
        cluster.run(rank_of_a_ring, send_first, size, seed, timeout=60, on_report=lambda _, event: events.append(event))
    except Deadlock as error:
        return events, error, (time.perf_counter_ns() - max(event.time for event in events)) / 1e9
    raise RuntimeError("every rank sent first and no message fit its queue, but there was no deadlock")


@dataclass(frozen=True)
class Moment:
    """State after an event: the call that each rank is in, the ranks it waits for, and the ranks that have ended."""

    calls: dict[int, str]
    waiting: dict[int, list[int]]
    finished: frozenset[int]


def moments(events: Sequence[Event], fits: bool) -> list[Moment]:
    """Return the state after each event.

    Args:
        events: events, ordered by time.
        fits: whether a message fits the queue, so that no send waits.
    """
    found, calls, posted = [], {}, set()
    latest: dict[int, Event] = {}  # rank -> its last event
    for event in events:
        latest[event.rank], calls[event.rank] = event, event.call
        posted |= {("send", *pair) for pair in event.sends} | {("recv", *pair) for pair in event.receives}
        waiting = {}
        for rank, last in latest.items():
            awaited = [source for source, to in last.receives if ("send", source, to) not in posted]
            awaited += [to for source, to in last.sends if ("recv", source, to) not in posted and not fits]
            if awaited:
                waiting[rank] = list(dict.fromkeys(awaited))
        finished = frozenset(rank for rank, call in calls.items() if not call)
        found.append(Moment(dict(calls), waiting, finished))
    return found
