"""One training step, cut out of the traces of all ranks: its phases, a pipeline's slots, what hides communication."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.analysis.report import both, clipped, length
from minidist.parallel.tools.schedule_check import Slot
from minidist.parallel.tools.schedules import Action
from minidist.trace import Event

KINDS = ("forward", "backward", "optimizer", "communication", "wait")


def kind_of(event: Event) -> str | None:
    """Return which of KINDS an event is; None for an event inside one of those."""
    if event.track in ("communication", "wait"):
        return event.track
    first = event.name.split()[0]
    return first if first in KINDS else None


def last_step(logs: Sequence[list]) -> list[list[Event]]:
    """Return each rank's events that began in its last step, with times in ns from the first rank's start.

    Raises:
        ValueError: if a log holds no step.
    """
    steps = [[entry for entry in log if isinstance(entry, Event) and entry.track == "step"] for log in logs]
    if not all(steps):
        raise ValueError("a log holds no event on the track 'step': run with RunOptions(trace=True)")
    starts = [found[-1].start for found in steps]
    zero = min(starts)
    return [
        [
            Event(entry.name, entry.track, entry.start - zero, entry.end - zero, entry.details)
            for entry in log
            if isinstance(entry, Event) and entry.start >= start
        ]
        for log, start in zip(logs, starts, strict=True)
    ]


def traced_step(logs: Sequence[list]) -> list[list[Event]]:
    """Return ``last_step`` without what a rank did after the step, such as comparing its weights with other ranks'."""
    steps = last_step(logs)
    ends = [next(event.end for event in log if event.track == "step") for log in steps]
    return [[event for event in log if event.start < end] for log, end in zip(steps, ends, strict=True)]


def step_length(step: Sequence[Sequence[Event]]) -> int:
    """Return how long a traced step took, in ns, until its last rank finished it."""
    return max(event.end for log in step for event in log if event.track == "step")


def slots_of(logs: Sequence[list]) -> list[list[Slot]]:
    """Return a real pipeline's actions and their times, in the form in which schedules are planned.

    They are those of the last step, in seconds from the first action on.

    Args:
        logs: one for each rank of one pipeline.
    """
    found = [
        [Slot(Action.parse(e.details["action"]), e.start / 1e9, e.end / 1e9) for e in events if "action" in e.details]
        for events in last_step(logs)
    ]
    zero = min(slot.start for rank in found for slot in rank)
    return [[Slot(slot.action, slot.start - zero, slot.end - zero) for slot in rank] for rank in found]


def hidden_share(log: Sequence[Event]) -> float:
    """Return the share of one rank's communication time that overlaps its forward and backward: 0 to 1.

    0 if there was no communication.
    """
    communication = [event for event in log if kind_of(event) == "communication"]
    compute = [event for event in log if kind_of(event) in ("forward", "backward")]
    return covered_share(communication, compute)


def covered_share(events: Sequence[Event], cover: Sequence[Event]) -> float:
    """Return the share of the time of ``events`` during which one of ``cover`` ran: 0 to 1, and 0 without events."""
    times, covers = (
        clipped([(event.start, event.end) for event in each], float("-inf"), float("inf")) for each in (events, cover)
    )
    total = length(times)
    return length(both(times, covers)) / total if total else 0.0


@dataclass(frozen=True)
class Departure:
    """One bucket: the parameters in it, when it is full and when it is sent, in the unit of the times."""

    parameters: tuple[int, ...]
    full: float
    sent: float


def departures(completed: Sequence[float], buckets: Sequence[Sequence[int]]) -> list[Departure]:
    """Return when buckets are sent if each one goes as soon as it is full and all before it have gone.

    Args:
        completed: time at which each parameter's gradient was complete.
        buckets: numbers of each bucket's parameters; buckets in the order of sending.
    """
    found: list[Departure] = []
    for bucket in buckets:
        full = max(completed[number] for number in bucket)
        sent = max(full, found[-1].sent) if found else full
        found.append(Departure(tuple(bucket), full, sent))
    return found
