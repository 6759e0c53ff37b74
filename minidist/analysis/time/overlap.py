"""How much of a rank's communication is hidden under its compute."""

from collections.abc import Sequence

from minidist.analysis.steps import kind_of
from minidist.trace import Event


def hidden_share(log: Sequence[Event]) -> float:
    """The share of one rank's communication time that overlaps its forward and backward: 0 to 1.

    0 if there was no communication.
    """
    communication = [event for event in log if kind_of(event) == "communication"]
    compute = [event for event in log if kind_of(event) in ("forward", "backward")]
    return covered_share(communication, compute)


def covered_share(events: Sequence[Event], cover: Sequence[Event]) -> float:
    """The share of the time of some events during which one of the others ran: 0 to 1, and 0 if there are none."""
    times, covers = _union(events), _union(cover)
    total = sum(end - start for start, end in times)
    covered = sum(
        max(0, min(end, cover_end) - max(start, cover_start))
        for start, end in times
        for cover_start, cover_end in covers
    )
    return covered / total if total else 0.0


def _union(events: Sequence[Event]) -> list[tuple[int, int]]:
    """The times at which any of the events ran, as intervals that do not overlap."""
    union: list[tuple[int, int]] = []
    for start, end in sorted((event.start, event.end) for event in events):
        if union and start <= union[-1][1]:
            union[-1] = (union[-1][0], max(end, union[-1][1]))
        else:
            union.append((start, end))
    return union
