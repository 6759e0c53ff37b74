"""One training step, cut out of the traces of all ranks."""

from collections.abc import Sequence

from minidist.trace import Event

KINDS = ("forward", "backward", "optimizer", "communication", "wait")


def kind_of(event: Event) -> str | None:
    """Which of KINDS an event is; None for an event inside one of those."""
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
    """Like ``last_step``, without what a rank did after it, such as comparing its weights with other ranks'."""
    steps = last_step(logs)
    ends = [next(event.end for event in log if event.track == "step") for log in steps]
    return [[event for event in log if event.start < end] for log, end in zip(steps, ends, strict=True)]


def step_length(step: Sequence[Sequence[Event]]) -> int:
    """How long a traced step took, in ns, until its last rank finished it."""
    return max(event.end for log in step for event in log if event.track == "step")
