"""The messages of a run and the events around them as they were timed, on one clock for all ranks."""

from collections.abc import Sequence

from minidist.analysis.replay import Flight
from minidist.trace import Event, Message


def real_flights(logs: Sequence[list]) -> list[Flight]:
    """The messages of a run, in microseconds from the first entry of any log.

    A flight starts when the message is put into its queue and ends when it is taken out.
    """
    zero = _zero(logs)
    ends = [entry for log in logs for entry in log if isinstance(entry, Message)]
    left = {(m.source, m.destination, m.number): m.time for m in ends if m.kind == "send"}
    arrived = [m for m in ends if m.kind == "receive" and (m.source, m.destination, m.number) in left]
    flights = [
        Flight(
            m.source,
            m.destination,
            m.nbytes,
            (left[m.source, m.destination, m.number] - zero) / 1000,
            (m.time - zero) / 1000,
        )
        for m in arrived
    ]
    return sorted(flights, key=lambda flight: (flight.start, flight.end))


def spans(logs: Sequence[list], track: str) -> list[tuple[int, float, float]]:
    """(rank, start, end) of every event on a track, on the clock of ``real_flights``."""
    zero = _zero(logs)
    return [
        (rank, (entry.start - zero) / 1000, (entry.end - zero) / 1000)
        for rank, log in enumerate(logs)
        for entry in log
        if isinstance(entry, Event) and entry.track == track
    ]


def _zero(logs: Sequence[list]) -> int:
    starts = [entry.start for log in logs for entry in log if isinstance(entry, Event)]
    times = [entry.time for log in logs for entry in log if isinstance(entry, Message)]
    return min([*starts, *times], default=0)
