"""What is measured around a training run on one rank: time, traffic, memory, FLOPs, a trace of the last steps."""

import time
from collections import Counter

from minidist import flops, ledger, overrides, trace
from minidist.comm.group import ProcessGroup
from minidist.train.hooks import StepHook
from minidist.train.share import Share

TRACED_STEPS = 2  # a trace shows the last few steps: each is like the others, and a whole run would fill a disk


class Instruments(StepHook):
    """Made before the model is split, so that its memory counts.

    Args:
        world: all ranks.
        traced_from: the step from which on to record a trace; None for no trace.
    """

    def __init__(self, world: ProcessGroup, traced_from: int | None) -> None:
        self.world, self.traced_from = world, traced_from
        self.memory = ledger.start()
        self.log: list = []
        self.collectives = trace.Collectives(Counter(), Counter())
        self.step_seconds: list[float] = []
        self.compute_seconds: list[float] = []
        self.seconds_without_core: list[float] = []
        self.step_flops: Counter = Counter()
        self.micro_batch_seconds: list[float] = []
        self.micro_batch_counts: list[int] = []
        self.micro_batches_begun = 0  # in this step
        self.gradients_done: float | None = None  # by the clock of computing

    def begin_run(self, share: Share) -> None:
        """Enter everything allocated so far into the memory ledger.

        Its peaks count from here: every rank has held the full model for a moment, where real systems init shards.
        """
        self.model = share.model
        for parameter in self.model.trained:  # master weights are entered already
            ledger.hold("parameters", parameter.data)
        for array in share.optimizer.state().values():
            ledger.hold("optimizer", array)
        experts = {p.name for p in self.model.model.parameters() if p.expert_axis is not None}
        self.expert_bytes = sum(p.data.nbytes for p in self.model.trained if p.name in experts)
        self.memory.forget_peaks()
        self.model.local.register_forward_pre_hook(self.begin_micro_batch)
        self.traffic, self.flops, self.started = self.world.traffic, flops.snapshot(), time.perf_counter()

    def begin_step(self, step: int) -> None:
        if step == self.traced_from:
            trace.start()
        clock = self.world.transport.clock
        self.earlier, self.counted = self.world.collectives, flops.snapshot()
        self.without_core, self.step_started = clock.seconds_without_core(), time.perf_counter()
        self.began, self.micro_batches_begun, self.gradients_done = clock.seconds(), 0, None
        self.span = trace.span(f"step {step}", "step")
        self.span.__enter__()

    def begin_micro_batch(self) -> None:
        """A forward pass begins. Those without samples are the last ones, and what a rank does there is for others."""
        numbers, place = self.model.micro_batches, self.micro_batches_begun
        self.micro_batches_begun += 1
        if place < len(numbers) and numbers[place] is None and self.gradients_done is None:
            self.gradients_done = self.world.transport.clock.seconds()

    def complete_gradients(self) -> None:
        if self.gradients_done is None:
            self.gradients_done = self.world.transport.clock.seconds()

    def end_step(self, step: int, loss: float, last: bool) -> None:
        self.span.__exit__(None, None, None)
        clock = self.world.transport.clock
        self.step_seconds.append(time.perf_counter() - self.step_started)
        self.compute_seconds.append(clock.seconds() - self.began)
        self.seconds_without_core.append(clock.seconds_without_core() - self.without_core)
        self.step_flops += flops.snapshot() - self.counted
        self.collectives = self.world.collectives - self.earlier
        # The update is left out: it takes as long for one micro-batch as for ten.
        self.micro_batch_counts.append(sum(number is not None for number in self.model.micro_batches))
        seconds = self.gradients_done - self.began
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
            "traffic": traffic,
            "memory": self.memory.as_dict() | ({"experts": self.expert_bytes} if self.expert_bytes else {}),
            "collectives": self.collectives.as_list(),
            "flops": dict(flops.snapshot() - self.flops),
            "step_flops": dict(self.step_flops),
            "log": trace.stop() if self.traced_from is not None else [],
            "override_calls": dict(overrides.calls),
        }
