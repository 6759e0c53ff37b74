"""A run replayed on a network of given speed: when each of its messages would leave and arrive.

Real ranks ran and recorded which messages they posted and waited for, in the order of their programs. Here the same
calls are made again against a clock, on the network of the alpha-beta model (Hockney, 1994): every rank has one port
out and one port in, both may be busy at the same time, and a message keeps its two ports busy for ``seconds(nbytes)``.
With a second for every message, whatever its size, the clock counts the steps of the algorithm.

Computing costs nothing here, and messages of different pairs never share a link: a lower bound, as the formulas of
textbooks are.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minidist.trace import PointToPoint


@dataclass(frozen=True)
class Flight:
    """One message of a replayed run. Times are in seconds, or steps, from the beginning of the run."""

    source: int
    destination: int
    nbytes: int
    start: float
    end: float


def replay(logs: Sequence[list], seconds: Callable[[int], float] = lambda nbytes: 1.0) -> list[Flight]:
    """The messages of a run in the order in which they arrive.

    Args:
        logs: for each rank of the world, what ``trace.stop()`` returned there. Only messages of the main thread can be
            replayed: those of asynchronous collectives have no order in the program.
        seconds: the time that a message of so many bytes takes; alpha + beta * nbytes, say.

    Raises:
        ValueError: where a rank waited for a message that no log holds.
    """
    programs = [[entry for entry in log if isinstance(entry, PointToPoint)] for log in logs]
    done = [0] * len(programs)  # calls of each rank that are replayed
    clock = [0.0] * len(programs)  # when each rank makes its next call
    port_out, port_in = clock.copy(), clock.copy()  # when each port is free again
    posted: dict[tuple[int, int, int], float] = {}  # message -> when it leaves
    flights = []
    while any(done[rank] < len(program) for rank, program in enumerate(programs)):
        before = sum(done)
        for rank, program in enumerate(programs):
            while done[rank] < len(program):
                call = program[done[rank]]
                message = (call.source, call.destination, call.number)
                if call.call == "post":
                    posted[message] = max(clock[rank], port_out[rank])
                    port_out[rank] = posted[message] + seconds(call.nbytes)
                elif call.kind == "send":
                    clock[rank] = max(clock[rank], posted[message] + seconds(call.nbytes))
                elif message in posted:
                    end = max(posted[message], port_in[rank]) + seconds(call.nbytes)
                    port_in[rank] = end
                    clock[rank] = max(clock[rank], end)
                    flights.append(Flight(call.source, rank, call.nbytes, posted[message], end))
                else:
                    break  # another rank has to get there first
                done[rank] += 1
        if sum(done) == before:
            raise ValueError("a rank waited for a message that is in no log: pass the logs of all ranks, of one run")
    return sorted(flights, key=lambda flight: (flight.end, flight.start))


def steps(logs: Sequence[list]) -> int:
    """How many steps the run takes, if every message takes one and a rank can send one and receive one at a time."""
    return int(max((flight.end for flight in replay(logs)), default=0))
