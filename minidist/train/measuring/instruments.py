"""Measurements around a training run on one rank: time, traffic, memory, FLOPs, a trace of the last steps.

``Live`` reports a step a few times a second. Such a step is traced, which makes a small one up to a quarter longer.
Ranks read one clock of the machine, so all of them usually report the same step.
"""

import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from math import inf

from minidist import flops, ledger, overrides, trace
from minidist.comm.group import ProcessGroup
from minidist.train.config import TrainConfig
from minidist.train.hooks import StepHook
from minidist.train.layout import Layout
from minidist.train.share import Share

TRACED_STEPS = 2  # a trace shows the last few steps: each is like the others, and a whole run would fill a disk


def traced_from(first: int, config: TrainConfig, layout: Layout) -> int:
    """Return the first step of the trace: of the whole run if messages cross steps, which a part would cut off."""
    if layout.slack or layout.sync in ("delayed", "server"):
        return first
    steps = max(TRACED_STEPS, layout.local_steps) if layout.sync == "local" else TRACED_STEPS  # a round of local steps
    return max(first, config.steps - steps)


class Instruments(StepHook):
    """Hook that measures a run. It is made before the model, to count its memory; a trace starts at ``traced_from``."""

    def __init__(self, world: ProcessGroup, traced_from: int | None) -> None:
        self.world, self.traced_from = world, traced_from
        self.memory = ledger.start()
        self.collectives = trace.Collectives()
        self.step_seconds: list[float] = []
        self.compute_seconds: list[float] = []
        self.seconds_without_core: list[float] = []
        self.step_flops: Counter = Counter()
        self.micro_batch_seconds: list[float] = []
        self.micro_batch_counts: list[int] = []
        self.expert_counts: list = []
        self.micro_batches_begun = 0  # in this step
        self.gradients_done = inf  # by the compute clock

    def begin_run(self, share: Share) -> None:
        """Enter everything allocated so far into the memory ledger.

        Peaks count from here: every rank has held the full model for a moment, which real systems avoid.
        """
        self.model, self.balance = share.model, share.gpt.balance
        share.on_local_gradients = self.on_local_gradients
        for parameter in self.model.trained:  # master weights are entered already
            ledger.enter("parameters", parameter.data)
        for array in share.optimizer.state().values():
            ledger.enter("optimizer", array)
        experts = {p.name for p in self.model.model.parameters() if p.expert_axis is not None}
        self.expert_bytes = sum(p.data.nbytes for p in self.model.trained if p.name in experts)
        self.memory.forget_peaks()
        if self.balance is not None:  # all ranks with experts run equally often, some without samples
            self.model.local.register_forward_pre_hook(self.begin_micro_batch)
        self.traffic, self.flops, self.started = self.world.traffic, flops.snapshot(), time.perf_counter()

    def begin_step(self, step: int, last: bool) -> None:
        first = self.traced_from
        if first is not None and (step == first or (last and step < first)):  # a run may be stopped before those steps
            trace.start()
        clock = self.world.transport.clock
        self.earlier, self.counted = self.world.collectives, flops.snapshot()
        self.without_core, self.step_started = clock.seconds_without_core(), time.perf_counter()
        self.began, self.micro_batches_begun, self.gradients_done = clock.seconds(), 0, inf
        self.span = trace.span(f"step {step}", "step")
        self.span.__enter__()

    def begin_micro_batch(self) -> None:
        """Count a forward pass. The first one without samples ends this rank's own work: those come last."""
        numbers, place = self.model.micro_batches, self.micro_batches_begun
        self.micro_batches_begun += 1
        if place < len(numbers) and numbers[place] is None:
            self.on_local_gradients()

    def on_local_gradients(self) -> None:
        """Record when this rank's own gradients are complete. Sums that overlap with backward may be in flight."""
        self.gradients_done = min(self.gradients_done, self.world.transport.clock.seconds())

    def end_step(self, step: int, loss: float, last: bool) -> None:
        self.span.__exit__(None, None, None)
        clock = self.world.transport.clock
        self.step_seconds.append(time.perf_counter() - self.step_started)
        self.compute_seconds.append(clock.seconds() - self.began)
        self.seconds_without_core.append(clock.seconds_without_core() - self.without_core)
        self.step_flops += flops.snapshot() - self.counted
        self.collectives = self.world.collectives - self.earlier
        self.micro_batch_counts.append(sum(number is not None for number in self.model.micro_batches))
        if self.balance is not None:
            self.expert_counts.append(self.balance.report())
        seconds = self.gradients_done - self.began  # without the update, which takes as long for any number of them
        self.micro_batch_seconds.append(seconds / max(1, self.micro_batch_counts[-1]))  # a server has none

    def end_run(self) -> dict:
        seconds = time.perf_counter() - self.started
        traffic = self.world.traffic - self.traffic
        ledger.stop()
        return {
            "seconds": seconds,
            "step_seconds": self.step_seconds,
            "compute_seconds": self.compute_seconds,
            "seconds_without_core": self.seconds_without_core,
            "micro_batch_seconds": self.micro_batch_seconds,
            "micro_batch_counts": self.micro_batch_counts,
            "expert_counts": self.expert_counts,
            "traffic": traffic,
            "memory": self.memory.as_dict() | ({} if self.balance is None else {"experts": self.expert_bytes}),
            "collectives": self.collectives.as_list(),
            "flops": dict(flops.snapshot() - self.flops),
            "step_flops": dict(self.step_flops),
            "log": trace.stop() if self.traced_from is not None else [],
            "override_calls": dict(overrides.calls),
        }


class Reports(StepHook):
    """Hook that reports each step to the parent."""

    def __init__(self, world: ProcessGroup, instruments: Instruments) -> None:
        self.world, self.instruments = world, instruments

    def begin_run(self, share: Share) -> None:
        self.model = share.model
        self.world.report(("ready", len(share.losses)))

    def end_step(self, step: int, loss: float, last: bool) -> None:
        self.world.report(("step", step, loss, self.instruments.compute_seconds[-1]))
        if self.model.micro_batches:  # a parameter server has none
            self.world.report(("pace", step, self.instruments.micro_batch_seconds[-1]))


EVERY = 0.25  # seconds
PHASES = ("forward", "backward", "optimizer")


@dataclass(frozen=True)
class Moment:
    """One step of one rank. Times are in ns, by a clock that all ranks share."""

    step: int  # counted from 0
    start: int
    end: int
    events: tuple[tuple[str, str, int, int], ...]  # (name, track, start, end) of phases, collectives and waits
    memory: dict[str, int]  # bytes by kind, at the rank's peak so far
    sent: int  # bytes in this step


class Live(StepHook):
    """Hook that reports some steps of one rank to the parent, each as ("moment", Moment)."""

    def __init__(self, world: ProcessGroup, memory: ledger.Memory) -> None:
        self.world, self.memory = world, memory
        self.reported = -1  # the last interval with a report

    def begin_step(self, step: int, last: bool) -> None:
        interval = int(time.perf_counter() / EVERY)
        self.shows = interval != self.reported
        if self.shows:
            self.reported, self.before, self.start = interval, self.world.traffic, time.perf_counter_ns()
            self.traces = trace.log is None  # otherwise the run is recording its trace, this step included
            if self.traces:
                trace.start()
            self.first = len(trace.log or ())

    def end_step(self, step: int, loss: float, last: bool) -> None:
        if not self.shows:
            return
        log = trace.stop() if self.traces else (trace.log or [])[self.first :]
        sent = int((self.world.traffic - self.before).sent[:, 0].sum())
        at_peak, end = dict(self.memory.at_peak), time.perf_counter_ns()
        self.world.report(("moment", Moment(step, self.start, end, tuple(shown(log)), at_peak, sent)))


def shown(log: list) -> Iterator[tuple[str, str, int, int]]:
    """Yield the events of a log that show what the main thread did, in the order in which they began."""
    events = [entry for entry in log if isinstance(entry, trace.Event) and entry.stream == 0]
    for event in sorted(events, key=lambda event: event.start):
        if event.track in ("communication", "wait") or event.name.split()[0] in PHASES:
            yield event.name, event.track, event.start, event.end
