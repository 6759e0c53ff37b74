"""When each bucket of gradients can be sent, from when backward completed each gradient."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Departure:
    """One bucket: the parameters in it, when it is full and when it is sent, in the unit of the times."""

    parameters: tuple[int, ...]
    full: float
    sent: float


def departures(completed: Sequence[float], buckets: Sequence[Sequence[int]]) -> list[Departure]:
    """When buckets are sent if each one goes as soon as it is full and all before it have gone.

    Args:
        completed: for each parameter, when its gradient was complete.
        buckets: for each bucket, in the order of sending, the numbers of its parameters.
    """
    found: list[Departure] = []
    for bucket in buckets:
        full = max(completed[number] for number in bucket)
        sent = max(full, found[-1].sent) if found else full
        found.append(Departure(tuple(bucket), full, sent))
    return found
