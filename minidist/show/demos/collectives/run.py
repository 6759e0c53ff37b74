"""A collective's run, step by step: what each rank's array held after each message.

Each rank runs the algorithm three times: on marks, which show whose contributions a chunk holds
(show/figures/contributions.py), on random numbers, and on integers that the audience can add. It copies its array
whenever a message has arrived. The replay of all ranks' calls says in which step that was (analysis/replay.py): there,
every message takes one step, and this machine's timing does not matter.

The numbers are float64 with float32 values, so that their sums are exact and do not depend on the order.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minidist import trace
from minidist.analysis.replay import Flight, flights
from minidist.comm.group import ProcessGroup
from minidist.show.demos.collectives.kinds import Kind
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.figures.contributions import marked
from minidist.trace import PointToPoint


@dataclass(frozen=True)
class Sent:
    """A message of one step: the chunks of the sender's array it came from, and those of the receiver's it changed."""

    source: int
    destination: int
    nbytes: int
    from_chunks: tuple[int, ...]
    to_chunks: tuple[int, ...]


@dataclass(frozen=True)
class Step:
    """The arrays of all ranks after a step, and the messages of that step."""

    values: np.ndarray  # (ranks, chunks) marks
    numbers: np.ndarray  # (ranks, M) float64
    integers: np.ndarray  # (ranks, chunks): rank r began with (r + 1)(c + 1) in chunk c
    messages: list[Sent]
    nbytes: list[int]  # that each rank has sent so far


def numbers_of(rank: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng((seed, rank)).standard_normal(size, np.float32).astype(np.float64)


def _filled(values: np.ndarray, size: int) -> np.ndarray:
    """Each chunk filled with its value: (chunks,) -> (size,)."""
    return np.repeat(values, [len(chunk) for chunk in np.array_split(np.empty(size), len(values))])


def recorded(kind: Kind, program: Callable, warm: WarmRanks, ranks: int, size: int, seed: int):
    """The steps of a run, and the logs of its ranks."""
    with warm(ranks) as cluster:
        results = cluster.run(_recorded_rank, kind.begins, program, size, seed, timeout=60)
    logs, marks, numbers, integers = (list(column) for column in zip(*results, strict=True))
    return _steps(logs, marks, numbers, integers), logs


def _recorded_rank(world: ProcessGroup, begins: Callable, program: Callable, size: int, seed: int):
    """One rank's log, and its arrays of marks, numbers and integers, at first and after each message received."""
    copies = []
    for draw in (
        lambda rank: _filled(marked(rank, world.size), size),
        lambda rank: numbers_of(rank, size, seed),
        lambda rank: _filled((rank + 1) * np.arange(1, world.size + 1), size),
    ):
        flat = begins(world.rank, np.stack([draw(rank) for rank in range(world.size)]))
        arrays = [flat.copy()]
        copies.append(arrays)

        def look(entry, arrays=arrays, flat=flat) -> None:
            if _is_arrival(entry):
                arrays.append(flat.copy())

        trace.start(look)
        try:
            program(flat, world)
        finally:
            log = trace.stop()
    return log, *copies


def _steps(logs: list[list], marks: list[list], numbers: list[list], integers: list[list]) -> list[Step]:
    """The state before the first step, and after each step.

    Args:
        logs: log of each rank.
        marks, numbers, integers: each rank's array at first and after each message that it received.
    """
    ranks = len(logs)
    cells, sums = ([[_cells(array, ranks) for array in arrays] for arrays in kind] for kind in (marks, integers))
    flown = flights(logs)
    received = _received(logs, flown)
    last = int(max((flight.end for flight in flown), default=0))
    found: list[Step] = []
    for step in range(last + 1):
        seen = [
            sum(flight.end <= step for flight in arrivals) for arrivals in received
        ]  # which copy of each rank's array
        messages = []
        for rank, arrivals in enumerate(received):
            for place, flight in enumerate(arrivals, 1):
                if flight.end == step:
                    senders = found[-1].values[flight.source], found[0].values[flight.source]
                    origins = _origins(senders, cells[rank][place - 1], cells[rank][place])
                    came_from = tuple(sorted(set(origins.values())))
                    messages.append(Sent(flight.source, rank, flight.nbytes, came_from, tuple(origins)))
        found.append(
            Step(
                np.stack([arrays[place] for arrays, place in zip(cells, seen, strict=True)]),
                np.stack([arrays[place] for arrays, place in zip(numbers, seen, strict=True)]),
                np.stack([arrays[place] for arrays, place in zip(sums, seen, strict=True)]),
                sorted(messages, key=lambda message: message.source),
                [sum(f.nbytes for f in flown if f.source == rank and f.end <= step) for rank in range(ranks)],
            )
        )
    return found


def _received(logs: list[list], flights: Sequence[Flight]) -> list[list[Flight]]:
    """Return the flights of the messages that each rank received, in the order in which its waits ended.

    Messages between two ranks stay in order: the third one sent is the third one received.
    """
    between = defaultdict(deque)
    for flight in sorted(flights, key=lambda flight: flight.start):
        between[flight.source, flight.destination].append(flight)
    return [[between[entry.source, entry.destination].popleft() for entry in log if _is_arrival(entry)] for log in logs]


def _is_arrival(entry) -> bool:
    return isinstance(entry, PointToPoint) and (entry.call, entry.kind) == ("wait", "receive")


def _origins(senders: Sequence[np.ndarray], old: np.ndarray, new: np.ndarray) -> dict[int, int]:
    """The chunks that a message changed -> the chunk of the sender's array that each of them came from.

    The origin is a chunk that holds what was stored or added. If there is none, the receiver changed the chunk itself.

    Args:
        senders: the sender's array now, and at first: an all-to-all sends from a copy of the latter.
        old, new: the receiver's array before and after the message.
    """
    origins = {}
    for chunk in np.flatnonzero(new != old).tolist():
        arrived = (new[chunk], (new - old)[chunk])  # as arrays: scalars would warn when they wrap around
        holding = [place for array in senders for value in arrived for place in np.flatnonzero(array == value).tolist()]
        if holding:
            origins[chunk] = chunk if chunk in holding else holding[0]
    return origins


def _cells(array: np.ndarray, ranks: int) -> np.ndarray:
    """What each chunk holds in its last element, which is the last to arrive: (chunks,)."""
    return np.array([chunk[-1] for chunk in np.array_split(array, ranks)])
