"""A collective's run, step by step: what each rank's array held after each message.

A rank runs the algorithm twice: on marks, which say whose contributions a chunk holds (show/contributions.py), and on
random numbers. It looks at its array whenever a message has arrived. In which step that was, the replay of all ranks'
calls says (analysis/replay.py): there every message takes one step, and the clock of this machine does not matter.

The numbers are float64 with float32 values, so that sums are exact and one process has the same bits, in any order.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minidist import trace
from minidist.analysis.replay import Flight, replay
from minidist.comm.group import ProcessGroup
from minidist.show.contributions import marked
from minidist.show.demos import board
from minidist.show.demos.kinds import Kind
from minidist.show.demos.runs import WarmRanks
from minidist.trace import PointToPoint


@dataclass(frozen=True)
class Step:
    """The arrays of all ranks after a step, and the messages of it."""

    values: np.ndarray  # (ranks, chunks) marks
    numbers: np.ndarray  # (ranks, M) float64
    messages: list[board.Sent]
    nbytes: list[int]  # that each rank has sent so far


def numbers_of(rank: int, size: int, seed: int) -> np.ndarray:
    return np.random.default_rng((seed, rank)).standard_normal(size, np.float32).astype(np.float64)


def _marks(rank: int, ranks: int, size: int) -> np.ndarray:
    """(size,): in each chunk its mark."""
    return np.repeat(marked(rank, ranks), [len(chunk) for chunk in np.array_split(np.empty(size), ranks)])


def watched(kind: Kind, program: Callable, warm: WarmRanks, ranks: int, size: int, seed: int):
    """The steps of a run, and the ranks' logs."""
    with warm(ranks) as cluster:
        results = cluster.run(_watched_rank, kind.begins, program, size, seed, timeout=60)
    logs = [log for log, *_ in results]
    return _steps(logs, [marks for _, marks, _ in results], [numbers for *_, numbers in results]), logs


def _watched_rank(world: ProcessGroup, begins: Callable, program: Callable, size: int, seed: int):
    """One rank's log, and the array of marks and that of numbers at first and after each message that it received."""
    photos = []
    for draw in (lambda rank: _marks(rank, world.size, size), lambda rank: numbers_of(rank, size, seed)):
        flat = begins(world.rank, np.stack([draw(rank) for rank in range(world.size)]))
        album = [flat.copy()]
        photos.append(album)

        def look(entry, album=album, flat=flat) -> None:
            if _is_arrival(entry):
                album.append(flat.copy())

        trace.start(look)
        try:
            program(flat, world)
        finally:
            log = trace.stop()
    return log, *photos


def _steps(logs: list[list], marks: list[list], numbers: list[list]) -> list[Step]:
    """What there was before the first step, and after each.

    Args:
        logs: of each rank.
        marks, numbers: of each rank its array before, and after each message that it received.
    """
    ranks = len(logs)
    cells = [[_cells(photo, ranks) for photo in album] for album in marks]
    flights = replay(logs)
    received = _received(logs, flights)
    last = int(max((flight.end for flight in flights), default=0))
    found: list[Step] = []
    for step in range(last + 1):
        seen = [sum(flight.end <= step for flight in arrivals) for arrivals in received]  # of each rank's photos
        messages = []
        for rank, arrivals in enumerate(received):
            for place, flight in enumerate(arrivals, 1):
                if flight.end == step:
                    senders = found[-1].values[flight.source], found[0].values[flight.source]
                    origins = _origins(senders, cells[rank][place - 1], cells[rank][place])
                    came_from = tuple(sorted(set(origins.values())))
                    messages.append(board.Sent(flight.source, rank, flight.nbytes, came_from, tuple(origins)))
        found.append(
            Step(
                np.stack([album[place] for album, place in zip(cells, seen, strict=True)]),
                np.stack([album[place] for album, place in zip(numbers, seen, strict=True)]),
                sorted(messages, key=lambda message: message.source),
                [sum(f.nbytes for f in flights if f.source == rank and f.end <= step) for rank in range(ranks)],
            )
        )
    return found


def _received(logs: list[list], flights: Sequence[Flight]) -> list[list[Flight]]:
    """For each rank the flights of the messages that it received, in the order in which its waits for them ended.

    Between two ranks messages stay in their order, so that the third one sent is the third one received.
    """
    between = defaultdict(deque)
    for flight in sorted(flights, key=lambda flight: flight.start):
        between[flight.source, flight.destination].append(flight)
    return [[between[entry.source, entry.destination].popleft() for entry in log if _is_arrival(entry)] for log in logs]


def _is_arrival(entry) -> bool:
    return isinstance(entry, PointToPoint) and (entry.call, entry.kind) == ("wait", "receive")


def _origins(senders: Sequence[np.ndarray], old: np.ndarray, new: np.ndarray) -> dict[int, int]:
    """The chunks that a message changed, and from which chunk of the sender's array each of them came.

    That is one that holds what was stored or added there; where none does, the receiver itself has changed the chunk.

    ``senders`` is that array now, and as it was at first: an all-to-all sends from a copy of that.
    """
    origins = {}
    for chunk in np.flatnonzero(new != old).tolist():
        arrived = (new[chunk], (new - old)[chunk])  # of arrays: scalars would warn of what wraps round
        holding = [place for array in senders for value in arrived for place in np.flatnonzero(array == value).tolist()]
        if holding:
            origins[chunk] = chunk if chunk in holding else holding[0]
    return origins


def _cells(photo: np.ndarray, ranks: int) -> np.ndarray:
    """(chunks,): what each chunk holds in its last element, the last one to arrive."""
    return np.array([chunk[-1] for chunk in np.array_split(photo, ranks)])
