"""Three programs that hand an array round a ring, each rank to its right neighbour; one of them may deadlock."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minidist import trace
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import P2POp, barrier, batch_isend_irecv, irecv, isend, recv, send

PAUSE = 0.02  # seconds that each rank comes later than the one before: one event after the other is easier to follow


@dataclass(frozen=True)
class Event:
    """A rank enters a call, or ends.

    Args:
        time: in ns.
        call: as it is written in the picture; "" at the end of its program.
        sends, receives: the messages that the call posts, by source and destination.
    """

    time: int
    rank: int
    call: str
    sends: tuple[tuple[int, int], ...] = ()
    receives: tuple[tuple[int, int], ...] = ()


def send_first(world: ProcessGroup, x: np.ndarray, y: np.ndarray, enters: Callable) -> None:
    """What deadlocks when the messages do not fit the queues."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    enters(f"send to {right}", to=right)
    send(x, right, world)
    enters(f"recv from {left}", source=left)
    recv(y, left, world)


def odd_receive_first(world: ProcessGroup, x: np.ndarray, y: np.ndarray, enters: Callable) -> None:
    """Somebody is there to receive, and so the circle is open."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    if world.rank % 2 == 0:
        return send_first(world, x, y, enters)
    enters(f"recv from {left}", source=left)
    recv(y, left, world)
    enters(f"send to {right}", to=right)
    send(x, right, world)


def posted_together(world: ProcessGroup, x: np.ndarray, y: np.ndarray, enters: Callable) -> None:
    """Neither waits for the other: what rings use."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    enters(f"send to {right}, recv from {left}", to=right, source=left)
    for work in batch_isend_irecv([P2POp(isend, x, right, world), P2POp(irecv, y, left, world)]):
        work.wait()


def numbers(rank: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng((seed, rank)).standard_normal(size)


def rank_of_a_ring(world: ProcessGroup, program: Callable, size: int, seed: int) -> tuple[np.ndarray, list]:
    """What a rank received, and its log."""
    x, y = numbers(world.rank, size, seed), np.zeros(size)

    def enters(call: str, to: int | None = None, source: int | None = None) -> None:
        sends = () if to is None else ((world.rank, to),)
        receives = () if source is None else ((source, world.rank),)
        world.report(Event(time.perf_counter_ns(), world.rank, call, sends, receives))

    barrier(world)  # a rank's first run takes longer to begin
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
