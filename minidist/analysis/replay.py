"""A run replayed on a network of a given speed: when each of its messages would leave and arrive.

Real ranks recorded which messages they posted and waited for, in program order. Here, the same calls are made again
against a clock, on the network of the alpha-beta model (Hockney, 1994): every rank has one outgoing and one incoming
port, both can be busy at the same time, and a message occupies its two ports for ``seconds(nbytes)``. If every message
takes one second, regardless of its size, the clock counts the steps of the algorithm.

Messages leave a rank in the order in which they were posted, and arrive in the order in which they could leave.
Computing takes no time, a receiver always has room, and messages of different pairs never share a link. The result is
a lower bound, like the formulas of textbooks.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minidist.trace import PointToPoint


@dataclass(frozen=True)
class Flight:
    """One message of a run. Times count from the beginning of the run, in the unit of the replay."""

    source: int
    destination: int
    nbytes: int
    start: float
    end: float


def replay(logs: Sequence[list], seconds: Callable[[int], float] = lambda nbytes: 1.0) -> list[Flight]:
    """The messages of a run, in the order in which they leave.

    Args:
        logs: for each rank of the world, what ``trace.stop()`` returned. Only messages of the main thread can be
            replayed: those of asynchronous collectives have no place in program order.
        seconds: the time that a message of so many bytes takes, such as alpha + beta * nbytes.

    Raises:
        ValueError: if a rank waited for a message that is in no log.
    """
    programs = [deque(entry for entry in log if isinstance(entry, PointToPoint)) for log in logs]
    clock = [0.0] * len(programs)  # when each rank makes its next call
    port_out, port_in = clock.copy(), clock.copy()  # when each port is free again
    posted: list[deque] = [deque() for _ in programs]  # each rank's messages that have not left yet: (when, message)
    flown: dict[tuple, Flight] = {}  # (source, destination, number) -> its flight
    while True:
        for rank, program in enumerate(programs):  # every rank continues until it waits for a message in flight
            while program and (program[0].call == "post" or _name(program[0]) in flown):
                call = program.popleft()
                if call.call == "post":
                    posted[rank].append((clock[rank], call))
                else:
                    clock[rank] = max(clock[rank], flown[_name(call)].end)
        # of the messages that could leave next, take the earliest: no rank will post an earlier one
        ready = [
            (max(when, port_out[rank], port_in[message.destination]), when, rank)
            for rank, (when, message) in ((rank, queue[0]) for rank, queue in enumerate(posted) if queue)
        ]
        if not ready:
            break
        start, _, rank = min(ready)
        message = posted[rank].popleft()[1]
        end = start + seconds(message.nbytes)
        port_out[rank] = port_in[message.destination] = end
        flown[_name(message)] = Flight(rank, message.destination, message.nbytes, start, end)
    if any(programs):
        raise ValueError("a rank waited for a message that is in no log: pass the logs of all ranks, of one run")
    return list(flown.values())


def _name(call: PointToPoint) -> tuple[int, int, int]:
    return call.source, call.destination, call.number


def steps(logs: Sequence[list]) -> int:
    """The number of steps of a run: a message takes one, and a rank can send one and receive one at a time."""
    return int(max((flight.end for flight in replay(logs)), default=0))
