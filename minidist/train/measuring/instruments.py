"""What is measured around a training run on one rank: time, traffic, memory, FLOPs, a trace of the last steps."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from minidist import flops, ledger, overrides, trace
from minidist.comm.group import ProcessGroup
from minidist.nn.optim.optimizers import Optimizer
from minidist.train.parallelize import ParallelModel

TRACED_STEPS = 2  # a trace shows the last few steps: each is like the others, and a whole run would fill a disk


class Instruments:
    """Opened before the model is split, read when the last step is over.

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

    def begin(self, model: ParallelModel, optimizer: Optimizer) -> None:
        """Called before the first step: enters everything allocated so far into the memory ledger.

        Its peaks count from here: every rank has held the full model for a moment, where real systems init shards.
        """
        for parameter in model.trained:  # master weights are entered already
            ledger.hold("parameters", parameter.data)
        for array in optimizer.state().values():
            ledger.hold("optimizer", array)
        experts = {p.name for p in model.model.parameters() if p.expert_axis is not None}
        self.expert_bytes = sum(p.data.nbytes for p in model.trained if p.name in experts)
        self.memory.forget_peaks()
        model.run = self.timing(model.run)
        self.traffic, self.flops, self.started = self.world.traffic, flops.snapshot(), time.perf_counter()

    def timing(self, run: Callable) -> Callable:
        """What runs a step's micro-batches, timed: seconds of computing, for each micro-batch that has samples.

        The update is skipped, since it takes as long for one micro-batch as for ten; so is what a rank does for others
        in micro-batches without samples, which come last.
        """
        clock = self.world.transport.clock

        def timed_run(micro_batches: Sequence[int | None], batch: Callable, *arguments) -> float:
            began, ended = clock.seconds(), None

            def noting(index: int | None) -> tuple:
                nonlocal ended
                if index is None and ended is None:
                    ended = clock.seconds()
                return batch(index)

            loss = run(micro_batches, noting, *arguments)
            ended = clock.seconds() if ended is None else ended
            self.micro_batch_counts.append(sum(index is not None for index in micro_batches))
            self.micro_batch_seconds.append((ended - began) / max(1, self.micro_batch_counts[-1]))  # a server has none
            return loss

        return timed_run

    @contextmanager
    def step(self, number: int) -> Iterator[None]:
        """One step runs within."""
        if number == self.traced_from:
            trace.start()
        earlier, counted, clock = self.world.collectives, flops.snapshot(), self.world.transport.clock
        began, without_core, started = clock.seconds(), clock.seconds_without_core(), time.perf_counter()
        with trace.span(f"step {number}", "step"):
            yield
        self.step_seconds.append(time.perf_counter() - started)
        self.compute_seconds.append(clock.seconds() - began)
        self.seconds_without_core.append(clock.seconds_without_core() - without_core)
        self.step_flops += flops.snapshot() - counted
        self.collectives = self.world.collectives - earlier

    def end(self) -> dict:
        """The last step is over. Returns what was measured, under the names of ``RankResult``'s fields."""
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
