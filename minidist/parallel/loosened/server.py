"""A parameter server: ranks that hold the parameters, and workers that pull them, compute, and push gradients.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014); Dean et al., "Large Scale
Distributed Deep Networks" (2012), whose Downpour SGD is the asynchronous kind. Here each server holds some of the
parameters, in full, with their optimizer state; each worker has all the weights, and some of the micro-batches
(worker.py).

- ``SynchronousServer`` takes one gradient of every worker, updates once with their mean, and answers all: the bits of
  one process.
- ``AsynchronousServer`` updates with each gradient as it comes, and answers that worker alone. Other workers compute
  meanwhile with weights that are old by then: a gradient's *staleness* is the number of updates between the weights
  that it was computed with and those that it is applied to. Without a bound it is N - 1 on average. With one
  (staleness.py) a worker that runs ahead waits for its answer.

Of several servers each takes the gradients in an order of its own: the weights that a worker pulls may be of different
ages, as in real systems. In a seeded order (arrivals.py) they are not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist import ledger
from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import irecv, isend
from minidist.comm.work import Work, wait_any
from minidist.nn.layers import Module, Parameter
from minidist.parallel.axis import Axis
from minidist.parallel.loosened.arrivals import Arrival
from minidist.parallel.loosened.full_state import full_from_servers
from minidist.parallel.loosened.shards import names_of_servers
from minidist.parallel.loosened.staleness import may_begin
from minidist.parallel.tools.flat import flattened, views_of


@dataclass(frozen=True)
class Push:
    """A gradient that a server applied. Versions count its updates.

    Attributes:
        worker, step: whose gradient, and of which of the worker's steps, counted from 0.
        read: the version of the weights that it was computed with.
        found: the version of those that it was applied to.
    """

    worker: int
    step: int
    read: int
    found: int

    @property
    def staleness(self) -> int:
        return self.found - self.read


class SynchronousServer(Axis):
    """One server: its share of the parameters, and their updates.

    Args:
        group: all ranks: the workers, and behind them the servers.
        workers: how many of them are workers.
        steps: that each worker takes.
        others: the servers, which join the gradient norm.
        dtype: of the gradients that workers push.
    """

    steps_apart = True

    def __init__(
        self, group: ProcessGroup, workers: int, steps: int, others: ProcessGroup | None, dtype=xp.float64
    ) -> None:
        super().__init__(group, others)
        self.workers, self.steps, self.dtype = range(workers), steps, dtype
        self.clocks = [0] * workers  # the steps that each worker has ended
        self.pushes_taken: list[Push] = []

    def apply(self, model: Module) -> Module:
        parameters = {parameter.name: parameter for parameter in model.parameters()}
        self.shapes = {name: parameter.shape for name, parameter in parameters.items()}
        names = names_of_servers(self.shapes, self.group.size - len(self.workers))
        self.parameters = [parameters[name] for name in names[self.group.rank - len(self.workers)]]
        size = sum(parameter.size for parameter in self.parameters)
        self.inboxes = [xp.empty(size, self.dtype) for _ in self.workers]
        for inbox in self.inboxes:
            ledger.hold("gradients", inbox)
        self.pushes: list[Work] = [self.next_push(worker) for worker in self.workers]
        self.answers: dict[int, Work] = {}  # the last one to each worker
        return model

    def trained(self, parameters: list[Parameter]) -> list[Parameter]:
        return self.parameters

    def next_push(self, worker: int) -> Work:
        """Wait, in the background, for the next gradient of a worker."""
        return irecv(self.inboxes[worker], worker, self.group)

    def sync_gradients(self) -> None:
        """Take one gradient of every worker: their sum is the gradient of the step."""
        for worker in self.workers:
            step = self.clocks[worker]
            self.take_from(worker, step, step)
        self.show(sum(self.inboxes))

    def take_from(self, worker: int, read: int, found: int) -> None:
        """Wait until a worker's gradient is in its inbox; versions as of ``Push``."""
        self.pushes[worker].wait()
        if worker in self.answers:
            self.answers.pop(worker).wait()  # the worker has it, or could not have pushed
        self.pushes_taken.append(Push(worker, self.clocks[worker], read, found))
        self.clocks[worker] += 1

    def show(self, gradients) -> None:
        """Let the optimizer find these, which are flat, as its parameters' gradients."""
        views = views_of(gradients, [parameter.shape for parameter in self.parameters])
        for parameter, view in zip(self.parameters, views, strict=True):
            parameter.grad = view

    def sync_params(self) -> None:
        """Answer all workers."""
        self.answer(self.workers)

    def answer(self, workers: Sequence[int]) -> None:
        """Send these workers the weights of now, as far as they have steps left, and wait for what they push next."""
        weights = flattened([parameter.data for parameter in self.parameters])
        for worker in workers:
            if self.clocks[worker] < self.steps:
                self.answers[worker] = isend(weights, worker, self.group)
                self.pushes[worker] = self.next_push(worker)

    def full_state(self, arrays: dict) -> dict:
        return full_from_servers(arrays, self.shapes, self.group, len(self.workers))


class AsynchronousServer(SynchronousServer):
    """One server that updates with each gradient as it comes.

    Args:
        staleness: by how many steps a worker may be ahead of the slowest; infinite for no bound.
        order: in which it takes the gradients; None for that in which they come.
    """

    def __init__(
        self, group: ProcessGroup, workers: int, steps: int, staleness: float, order: Sequence[Arrival] | None
    ) -> None:
        super().__init__(group, workers, steps, None, xp.float32)
        self.staleness = staleness
        self.order = None if order is None else iter(order)
        self.version = 0
        self.read = [0] * workers  # the version that each worker computes with
        self.waiting: list[int] = []  # workers that have no answer yet
        self.last = 0

    def sync_gradients(self) -> None:
        """Take the next gradient."""
        worker = self.last = next(self.order).worker if self.order is not None else self.first_to_come()
        self.take_from(worker, self.read[worker], self.version)
        self.show(self.inboxes[worker])
        self.waiting.append(worker)

    def first_to_come(self) -> int:
        """Whose gradient is there, or comes first. Of several, the one after the last that was taken: that is fair."""
        turns = [(self.last + 1 + place) % len(self.workers) for place in self.workers]
        computing = [worker for worker in turns if worker not in self.waiting and self.clocks[worker] < self.steps]
        return computing[wait_any([self.pushes[worker] for worker in computing])]

    def sync_params(self) -> None:
        """Answer those that wait and may go on."""
        self.version += 1
        going = [worker for worker in sorted(self.waiting) if may_begin(self.clocks, worker, self.staleness)]
        self.waiting = [worker for worker in self.waiting if worker not in going]
        for worker in going:
            self.read[worker] = self.version
        self.answer(going)
