"""The memory of a rank over its steps: every change of the memory ledger, next to the events of its trace.

The axis of a picture is not the clock. If there are more ranks than cores, a rank that waits for a core would seem to
hold something for long. The axis counts the changes of the ledger instead, all of equal length. Ranks do the same work,
so the changes of one rank line up with those of the next.
"""

import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from unittest.mock import patch

from minidist import ledger, trace
from minidist.comm.group import ProcessGroup
from minidist.ledger import KINDS
from minidist.trace import Event
from minidist.train.result import RankResult
from minidist.train.trainer import train_rank


@dataclass(slots=True)
class Change:
    """Entry of a rank's log: the memory that the rank holds from now on."""

    time: int  # ns
    held: dict[str, int]  # bytes of each kind


def train_logging_memory(world: ProcessGroup, *arguments) -> RankResult:
    """Run ``train_rank``; if it traces, the log has a ``Change`` for each change of the memory ledger."""

    def record(memory: ledger.Memory) -> None:
        trace.record(Change(time.perf_counter_ns(), dict(memory.held)))

    with patch.object(ledger, "start", partial(ledger.start, record)):
        return train_rank(world, *arguments)


@dataclass(frozen=True)
class MemoryLog:
    """Memory that one rank held over some steps. A place in them is the share of all changes before it, from 0 to 1.

    Args:
        changes: changes in order; the first one says what the rank held before the steps.
        spans: events of the trace that began in these steps, in order.
    """

    changes: Sequence[Change]
    spans: Sequence[Event]

    def place(self, moment: int) -> float:
        return bisect_right(self.changes, moment, key=lambda change: change.time) / len(self.changes)

    def between(self, start: float, end: float) -> Mapping[str, int]:
        """Return the bytes of each kind at the moment between two places at which the rank held most."""
        first = int(start * len(self.changes) + 1e-9)  # rounding must not lose a change
        last = max(first + 1, int(end * len(self.changes) + 1e-9))
        return max((change.held for change in self.changes[first:last]), key=lambda held: sum(held.values()))

    def at(self, place: float) -> Mapping[str, int]:
        """Return the bytes of each kind that the rank held at a place."""
        return self.changes[max(0, int(place * len(self.changes) + 1e-9) - 1)].held

    def highest(self, *kinds: str) -> int:
        """Return the most bytes held at once, of these kinds, or of all if none is given."""
        return max(sum(change.held[kind] for kind in kinds or KINDS) for change in self.changes)

    def places(self, name: str) -> list[tuple[float, float]]:
        """Return the places (start, end) of every event whose name starts with ``name``."""
        return [(self.place(s.start), self.place(s.end)) for s in self.spans if s.name.startswith(name)]


def last_steps(log: Sequence, steps: int = 1) -> MemoryLog:
    """Return the memory that a rank held in its last ``steps`` steps, from the log of ``train_logging_memory``."""
    spans = [entry for entry in log if isinstance(entry, Event)]
    shown = [span for span in spans if span.track == "step"][-steps:]
    start, end = shown[0].start, shown[-1].end
    changes = sorted((entry for entry in log if isinstance(entry, Change)), key=lambda change: change.time)
    first = max(0, bisect_right(changes, start, key=lambda change: change.time) - 1)
    inside = [change for change in changes[first:] if change.time <= end]
    return MemoryLog(inside, sorted((span for span in spans if span.start >= start), key=lambda span: span.start))
