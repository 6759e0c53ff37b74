"""What a run shows while it goes on: a few times a second, each rank reports one of its steps.

A step that is reported is traced, which makes a small one up to a quarter longer. Ranks go by one clock of the machine,
so that, as a rule, all of them report the same step.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from minidist import ledger, trace
from minidist.comm.group import ProcessGroup
from minidist.train.hooks import StepHook

EVERY = 0.25  # seconds
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Moment:
    """One step of one rank.

    Attributes:
        step: counted from 0.
        start, end: ns, by a clock that all ranks share.
        events: (name, track, start, end) of phases, collectives and waits.
        memory: bytes by kind, when the rank held most so far.
        sent: bytes in this step.
    """

    step: int
    start: int
    end: int
    events: tuple[tuple[str, str, int, int], ...]
    memory: dict[str, int]
    sent: int


class Live(StepHook):
    """Reports steps of one rank to the parent, each as ("moment", Moment)."""

    def __init__(self, world: ProcessGroup, memory: ledger.Memory) -> None:
        self.world, self.memory = world, memory
        self.reported = -1  # the number of the interval that had its report

    def begin_step(self, step: int) -> None:
        interval = int(time.perf_counter() / EVERY)
        self.shows = interval != self.reported and trace.log is None
        if self.shows:
            self.reported, self.before, self.start = interval, self.world.traffic, time.perf_counter_ns()
            trace.start()

    def end_step(self, step: int, loss: float, last: bool) -> None:
        if not self.shows:
            return
        log = trace.stop()
        sent = int((self.world.traffic - self.before).sent[:, 0].sum())
        at_peak, end = dict(self.memory.at_peak), time.perf_counter_ns()
        self.world.report(("moment", Moment(step, self.start, end, tuple(shown(log)), at_peak, sent)))


def shown(log: list) -> Iterator[tuple[str, str, int, int]]:
    """The events of a log that say what the main thread was about, in the order in which they began."""
    events = [entry for entry in log if isinstance(entry, trace.Event) and entry.stream == 0]
    for event in sorted(events, key=lambda event: event.start):
        if event.track in ("communication", "wait") or event.name.split()[0] in PHASES:
            yield event.name, event.track, event.start, event.end
