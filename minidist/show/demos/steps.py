"""A collective's run, step by step: what each rank's array held after each message.

A rank runs the algorithm twice: on marks, which say whose contributions a chunk holds (show/contributions.py), and on
random numbers. It looks at its array whenever a message has arrived. In which step that was, the replay of all ranks'
calls says (show/replay.py): there every message takes one step, and the clock of this machine does not matter.

The numbers are float64 with float32 values, so that sums are exact and one process has the same bits, in any order.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from minidist import trace
from minidist.comm.algorithms import chunks_of
from minidist.comm.group import ProcessGroup
from minidist.show.contributions import marked
from minidist.show.demos import board
from minidist.show.demos.kinds import Kind
from minidist.show.demos.runs import WarmRanks
from minidist.show.replay import replay
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
    return np.repeat(marked(rank, ranks), [len(chunk) for chunk in chunks_of(np.empty(size), ranks)])


def watched(kind: Kind, program: Callable, warm: WarmRanks, ranks: int, size: int, seed: int):
    """The steps of a run, and the ranks' logs."""
    with warm(ranks) as cluster:
        results = cluster.run(_watched_rank, kind.begins, program, size, seed, timeout=60)
    logs = [log for log, *_ in results]
    return _steps(kind, logs, [marks for _, marks, _ in results], [numbers for *_, numbers in results]), logs


def _watched_rank(world: ProcessGroup, begins: Callable, program: Callable, size: int, seed: int):
    """One rank's log, and the array of marks and that of numbers at first and after each message that it received."""
    photos = []
    for draw in (lambda rank: _marks(rank, world.size, size), lambda rank: numbers_of(rank, size, seed)):
        flat = begins(world.rank, np.stack([draw(rank) for rank in range(world.size)]))
        album = [flat.copy()]
        photos.append(album)

        def look(entry, album=album, flat=flat) -> None:
            if isinstance(entry, PointToPoint) and (entry.call, entry.kind) == ("wait", "receive"):
                album.append(flat.copy())

        trace.start(look)
        try:
            program(flat, world)
        finally:
            log = trace.stop()
    return log, *photos


def _steps(kind: Kind, logs: list[list], marks: list[list], numbers: list[list]) -> list[Step]:
    ranks = len(logs)
    cells = [[_cells(photo, ranks) for photo in album] for album in marks]
    flights, nth = replay(logs), Counter()
    numbered = {}  # (source, destination, how many before it between the two) -> its flight
    for flight in sorted(flights, key=lambda flight: flight.start):
        numbered[flight.source, flight.destination, nth[flight.source, flight.destination]] = flight
        nth[flight.source, flight.destination] += 1
    received = []  # for each rank the flights that came in, in the order of its photos
    for log in logs:
        waits = [e for e in log if isinstance(e, PointToPoint) and (e.call, e.kind) == ("wait", "receive")]
        seen: Counter = Counter()
        arrivals = []
        for entry in waits:
            arrivals.append(numbered[entry.source, entry.destination, seen[entry.source]])
            seen[entry.source] += 1
        received.append(arrivals)
    found = [Step(np.stack([c[0] for c in cells]), np.stack([n[0] for n in numbers]), [], [0] * ranks)]
    for step in range(1, int(max((flight.end for flight in flights), default=0)) + 1):
        at = [sum(flight.end <= step for flight in arrivals) for arrivals in received]
        messages = []
        for rank, arrivals in enumerate(received):
            for place, flight in enumerate(arrivals, 1):
                if flight.end == step:
                    old, new = cells[rank][place - 1], cells[rank][place]
                    senders = found[-1].values[flight.source], found[0].values[flight.source]
                    origins = _origins(senders, old, new)
                    came_from = tuple(sorted(set(origins.values())))
                    messages.append(board.Sent(flight.source, rank, flight.nbytes, came_from, tuple(origins)))
        sent = [sum(f.nbytes for f in flights if f.source == rank and f.end <= step) for rank in range(ranks)]
        found.append(
            Step(
                np.stack([c[place] for c, place in zip(cells, at, strict=True)]),
                np.stack([n[place] for n, place in zip(numbers, at, strict=True)]),
                sorted(messages, key=lambda message: message.source),
                sent,
            )
        )
    return found


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
    return np.array([chunk[-1] for chunk in chunks_of(photo, ranks)])
