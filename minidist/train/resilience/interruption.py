"""A failure that a run survives: who failed, why, and what it cost, from what the ranks had reported."""

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

from minidist.comm.failures import Deadlock, Hang, RankFailed
from minidist.train.layout import Layout
from minidist.train.resilience.faults import Fault

Failure = RankFailed | Deadlock | Hang


@dataclass
class Interruption:
    """A failure that a run survived.

    Attributes:
        step: counted from 0, in which it happened.
        ranks: that failed; none where nobody could be named, as in a deadlock.
        why: in one line.
        before, after: the layouts.
        resumed: the step with which the run went on.
        source: where its state came from: the folder of a checkpoint, "the memory of peers", or "the beginning"; ""
            if the next failure came before that was known.
        lost: which copies in memory could not be used, and why; "" if none was missing.
        detect: seconds from the last report of a rank that failed until the failure was known.
        restart: seconds from then until all ranks were ready to take a step.
        recompute: seconds that it took to come to ``step`` again.
    """

    step: int
    ranks: tuple[int, ...]
    why: str
    before: Layout
    after: Layout
    resumed: int = 0
    source: str = ""
    lost: str = ""
    detect: float = 0.0
    restart: float = 0.0
    recompute: float = 0.0

    def as_dict(self) -> dict:
        """What ``--json`` writes."""
        return asdict(self) | {"before": str(self.before), "after": str(self.after)}


class Attempt:
    """What the ranks report of one attempt.

    Args:
        before: the interruption before it, to which the time of going on is charged.
        since: when that was known, by ``time.monotonic``.
        on_event: called for each event too.
        verified: as below, by the attempts before.

    Attributes:
        struck: the faults that have.
        verified: the number of steps after which the state was last known to be right: with which an attempt began,
            or which the ranks have checked since.
    """

    def __init__(
        self, before: Interruption | None, since: float, on_event: Callable[[int, tuple], None], verified: int
    ) -> None:
        self.before, self.since, self.pass_on = before, since, on_event
        self.struck: list[Fault] = []
        self.verified = verified
        self.ready: float | None = None
        self.next_steps: dict[int, int] = {}  # rank -> the step that it is in
        self.heard: dict[int, float] = {}  # rank -> when it last reported

    def on_event(self, rank: int, event: tuple) -> None:
        now = self.heard[rank] = time.monotonic()
        if event[0] == "fault":
            self.struck.append(event[1])
        elif event[0] == "verified":
            self.verified = event[1] + 1  # the event counts steps from 0
        elif event[0] == "ready":
            self.next_steps[rank], self.ready = event[1], now
            self.verified = max(self.verified, event[1])
            if self.before is not None:
                self.before.restart = now - self.since
        elif event[0] == "step":
            self.next_steps[rank] = event[1] + 1
            if self.before is not None and event[1] < self.before.step:
                self.before.recompute = now - self.ready
        self.pass_on(rank, event)

    def failed(self, error: Failure, layout: Layout, now: float) -> Interruption:
        """What there is to say of the failure that ended this attempt."""
        if self.before is not None and self.ready is None:
            self.before.restart = now - self.since
        ranks = failed_ranks(error)
        steps = [step for rank, step in self.next_steps.items() if rank in ranks or not ranks]
        step = min(steps, default=self.before.resumed if self.before else 0)
        heard = [when for rank, when in self.heard.items() if rank in ranks or not ranks]
        why = str(error).splitlines()[0].rstrip(":")
        return Interruption(step, ranks, why, layout, layout, detect=now - max(heard, default=self.since))


def kind_of(error: Failure) -> str:
    """The name of the exception that ended a rank; of the error itself where that was none."""
    return error.summary.partition(":")[0] if isinstance(error, RankFailed) else type(error).__name__


def failed_ranks(error: Failure) -> tuple[int, ...]:
    """The ranks that are not to be relied on any longer."""
    if kind_of(error) == "CorruptedNumbers":  # which every rank raises: the message says whose numbers they were
        named = re.search(r"\brank (\d+)", error.summary.partition(".")[0])
        return (int(named[1]),) if named else ()
    return () if isinstance(error, Deadlock) else error.ranks
