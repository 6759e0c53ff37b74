"""The program that deadlocks if its messages do not fit the queues: every rank sends before it receives."""

import time
from collections.abc import Callable

import numpy as np

from minidist.comm.failures import Deadlock
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import recv, send
from minidist.comm.runtime.launch import Cluster
from minidist.show.demos.deadlock.run import Event, rank_of_a_ring

BUG = "every rank sends before it receives, and a message is larger than a queue"


def send_first(world: ProcessGroup, x: np.ndarray, y: np.ndarray, enters: Callable) -> None:
    """Nobody receives until its own message has been taken."""
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    enters(f"send to {right}", to=right)
    send(x, right, world)
    enters(f"recv from {left}", source=left)
    recv(y, left, world)


def deadlock(cluster: Cluster, size: int, seed: int) -> tuple[list[Event], Deadlock, float]:
    """The events up to the deadlock, the parent's error, and how many seconds after the last event it came.

    Raises:
        RuntimeError: if there was no deadlock.
    """
    events: list = []
    try:
        cluster.run(rank_of_a_ring, send_first, size, seed, timeout=60, on_report=lambda _, event: events.append(event))
    except Deadlock as error:
        return events, error, (time.perf_counter_ns() - max(event.time for event in events)) / 1e9
    raise RuntimeError("every rank sent first and no message fit its queue, but there was no deadlock")
