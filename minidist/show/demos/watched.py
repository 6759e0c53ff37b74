"""Training with the memory ledger watched: every change of what a rank holds, beside the spans of its trace.

The axis of a picture is not the clock: where ranks are more than cores, one that waits for its turn would look as if
it held something for long. It is the ledger's changes, in their order, each as long as every other. Ranks do the same
work, so the changes of one rank stand above those of the next.
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
    """An entry of a rank's log: what the rank holds from here on."""

    time: int  # ns
    held: dict[str, int]  # bytes by kind


def train_watched(world: ProcessGroup, *arguments) -> RankResult:
    """``train_rank``, with a ``Change`` in the log for each change of the ledger, where a trace is wished for."""

    def note(memory: ledger.Memory) -> None:
        trace.record(Change(time.perf_counter_ns(), dict(memory.held)))

    with patch.object(ledger, "start", partial(ledger.start, note)):
        return train_rank(world, *arguments)


@dataclass(frozen=True)
class Held:
    """What one rank held over some steps. A place in them is the share of the changes that came before: 0 to 1.

    Args:
        changes: the first one is what there was before.
        spans: of the rank's trace that began in these steps, in the order in which they began.
    """

    changes: Sequence[Change]
    spans: Sequence[Event]

    def place(self, moment: int) -> float:
        return bisect_right(self.changes, moment, key=lambda change: change.time) / len(self.changes)

    def between(self, start: float, end: float) -> Mapping[str, int]:
        """What was held when most was held between two places."""
        first = int(start * len(self.changes) + 1e-9)  # rounding must not lose one
        last = max(first + 1, int(end * len(self.changes) + 1e-9))
        return max((change.held for change in self.changes[first:last]), key=lambda held: sum(held.values()))

    def at(self, place: float) -> Mapping[str, int]:
        """What was held after the changes up to a place."""
        return self.changes[max(0, int(place * len(self.changes) + 1e-9) - 1)].held

    def highest(self, *kinds: str, end: float = 1.0) -> int:
        """The most bytes held at once up to a place, of the kinds that are named or of all."""
        seen = self.changes[: max(1, int(end * len(self.changes) + 1e-9))]
        return max(sum(change.held[kind] for kind in kinds or KINDS) for change in seen)

    def places(self, name: str) -> list[tuple[float, float]]:
        """From where to where the spans go whose names begin so."""
        return [(self.place(s.start), self.place(s.end)) for s in self.spans if s.name.startswith(name)]


def last_steps(log: Sequence, steps: int = 1) -> Held:
    """What a rank held in its last steps, at most 2, from the log that ``train_watched`` left."""
    spans = [entry for entry in log if isinstance(entry, Event)]
    shown = [span for span in spans if span.track == "step"][-steps:]
    start, end = shown[0].start, shown[-1].end
    changes = sorted((entry for entry in log if isinstance(entry, Change)), key=lambda change: change.time)
    first = max(0, bisect_right(changes, start, key=lambda change: change.time) - 1)
    inside = [change for change in changes[first:] if change.time <= end]
    return Held(inside, sorted((span for span in spans if span.start >= start), key=lambda span: span.start))
