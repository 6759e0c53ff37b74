"""What a run shows while it goes on: a few times a second, each rank reports one of its steps.

A step that is reported is traced, which makes a small one up to a quarter longer. Ranks go by one clock of the machine,
so that, as a rule, all of them report the same step.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from minidist import ledger, trace
from minidist.comm.group import ProcessGroup

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


class Live:
    """Reports steps of one rank to the parent, each as ("moment", Moment)."""

    def __init__(self, world: ProcessGroup, memory: ledger.Memory) -> None:
        self.world, self.memory = world, memory
        self.reported = -1  # the number of the interval that had its report

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One step runs within."""
        interval = int(time.perf_counter() / EVERY)
        if interval == self.reported or trace.log is not None:
            yield
            return
        self.reported, before = interval, self.world.traffic
        start = time.perf_counter_ns()
        trace.start()
        try:
            yield
        finally:
            log = trace.stop()
        sent = int((self.world.traffic - before).sent[:, 0].sum())
        at_peak = dict(self.memory.at_peak)
        self.world.report(("moment", Moment(number, start, time.perf_counter_ns(), tuple(shown(log)), at_peak, sent)))


def shown(log: list) -> Iterator[tuple[str, str, int, int]]:
    """The events of a log that say what the main thread was about, in the order in which they began."""
    events = [entry for entry in log if isinstance(entry, trace.Event) and entry.stream == 0]
    for event in sorted(events, key=lambda event: event.start):
        if event.track in ("communication", "wait") or event.name.split()[0] in PHASES:
            yield event.name, event.track, event.start, event.end
