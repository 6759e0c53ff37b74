"""Run of a collective, step by step: which terms every chunk of every rank held after each message.

Each rank runs the algorithm on counts: chunk c of rank r begins as one term (r, c), so whatever the algorithm does, a
chunk's counts say exactly which terms are in it, and how often. Each rank copies its array whenever a message has
arrived. The replay of all ranks' calls says in which step that was (analysis/replay.py): there every message takes one
step, and this machine's timing does not matter.
"""

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minidist import trace
from minidist.analysis.replay import flights
from minidist.trace import PointToPoint


@dataclass(frozen=True)
class Sent:
    """Message of one step. chunks: chunk of the receiver that it changed -> chunk of the sender."""

    source: int
    destination: int
    chunks: dict[int, int]


@dataclass(frozen=True)
class Step:
    """State of all ranks after a step: terms, messages of the step, and how many arrays each has sent so far."""

    terms: np.ndarray  # (ranks, chunks, ranks, chunks) int: how often term (r, c) is in a chunk
    messages: tuple[Sent, ...]
    sent: tuple[float, ...]


def recorded(begins: Callable, program: Callable, cluster) -> tuple[list[Step], list[list]]:
    """Run the program on a cluster; return the state before the first step and after each, and the ranks' logs."""
    logs, copies = (list(part) for part in zip(*cluster.run(_recorded_rank, begins, program, timeout=60), strict=True))
    ranks = len(logs)
    flown = sorted(flights(logs), key=lambda flight: flight.start)
    between = defaultdict(deque)  # messages between two ranks stay in order
    for flight in flown:
        between[flight.source, flight.destination].append(flight)
    received = [
        [between[entry.source, entry.destination].popleft() for entry in log if _is_arrival(entry)] for log in logs
    ]
    whole = copies[0][0].nbytes
    steps: list[Step] = []
    for number in range(int(max((flight.end for flight in flown), default=0)) + 1):
        seen = [sum(flight.end <= number for flight in arrivals) for arrivals in received]
        messages = tuple(
            Sent(
                flight.source,
                rank,
                _changed(
                    steps[-1].terms[flight.source],
                    steps[0].terms[flight.source],
                    copies[rank][place - 1],
                    copies[rank][place],
                ),
            )
            for rank, arrivals in enumerate(received)
            for place, flight in enumerate(arrivals, 1)
            if flight.end == number
        )
        sent = (sum(f.nbytes for f in flown if f.source == rank and f.end <= number) / whole for rank in range(ranks))
        now = np.stack([arrays[place] for arrays, place in zip(copies, seen, strict=True)])
        steps.append(Step(now, messages, tuple(sent)))
    return steps, logs


def _recorded_rank(world, begins: Callable, program: Callable):
    """Return a rank's log, and copies of its terms (chunks, ranks, chunks) at first and after each message received."""
    size = world.size
    values = np.eye(size * size, dtype=np.int64).reshape(size, -1)  # (ranks, chunks * ranks * chunks)
    flat = begins(world.rank, values)
    copies = [flat.reshape(size, size, size).copy()]

    def look(entry) -> None:
        if _is_arrival(entry):
            copies.append(flat.reshape(size, size, size).copy())

    trace.start(look)
    try:
        program(flat, world)
    finally:
        log = trace.stop()
    return log, copies


def _is_arrival(entry) -> bool:
    return isinstance(entry, PointToPoint) and (entry.call, entry.kind) == ("wait", "receive")


def _changed(sender: np.ndarray, at_first: np.ndarray, old: np.ndarray, new: np.ndarray) -> dict[int, int]:
    """Map each receiver's chunk that a message changed to the sender's chunk whose terms were stored or added."""
    found = {}
    for chunk in np.flatnonzero((new != old).any((1, 2))).tolist():
        arrived = (new[chunk], new[chunk] - old[chunk])
        holding = [
            place
            for array in (sender, at_first)  # an all-to-all sends from a copy of what it held at first
            for terms in arrived
            for place in range(len(array))
            if (array[place] == terms).all()
        ]
        if holding:
            found[chunk] = chunk if chunk in holding else holding[0]
    return found
