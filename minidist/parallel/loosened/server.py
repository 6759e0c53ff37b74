"""A parameter server: ranks that hold the parameters, and workers that pull them, compute, and push gradients.

Li et al., "Scaling Distributed Machine Learning with the Parameter Server" (OSDI 2014); Dean et al., "Large Scale
Distributed Deep Networks" (2012), whose Downpour SGD is the asynchronous kind. Here each server holds some of the
parameters, in full, with their optimizer state. A ``Worker`` has all the weights, and some of the micro-batches: it
pulls weights, computes gradients, and pushes them. It updates nothing itself.

- ``SynchronousServer`` takes one gradient of every worker, updates once with their mean, and answers all workers. The
  run has the bits of one process.
- ``AsynchronousServer`` updates with each gradient as it comes, and answers that worker alone. Meanwhile other workers
  compute with weights that are old by then: a gradient's *staleness* is the number of updates between the weights
  that it was computed with and those that it is applied to. Without a bound it is N - 1 on average. With one
  (``may_begin``) a worker that runs ahead waits for its answer.

If there are several servers, each takes the gradients in its own order: the weights that a worker pulls may be of
different ages, as in real systems. In a seeded order (arrivals.py) they are not.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minidist import ledger
from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import irecv, isend, wait_any
from minidist.comm.work import Work
from minidist.nn.layers import Module, Parameter
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.optimizers import average_gradients
from minidist.nn.precision.policy import current
from minidist.nn.precision.underflow import MasterWeights, master_weights
from minidist.overrides import overridable
from minidist.parallel.axis import Axis, use_grad_views, zero_gradients
from minidist.parallel.loosened.arrivals import Arrival, may_begin
from minidist.parallel.tools.messages import flattened, unflatten
from minidist.parallel.tools.regions import Region


@overridable
def shard_map(sizes: Mapping[str, int], servers: int) -> list[list[str]]:
    """Return the names of the parameters that each server holds.

    Parameters are dealt out from the largest on, each to the server that holds the fewest elements so far: the fullest
    server then holds at most 4/3 of what it would in the best division (Graham, "Bounds on Multiprocessing Timing
    Anomalies", 1969). TensorFlow's ``GreedyLoadBalancingStrategy`` does so without sorting.

    Args:
        sizes: number of elements of each parameter, by name. Parameters of equal size keep their order.
        servers: number of servers. Of equally full servers, the one with the lower number gets the next parameter.
    """
    shards: list[list[str]] = [[] for _ in range(servers)]
    held = [0] * servers
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        emptiest = held.index(min(held))
        shards[emptiest].append(name)
        held[emptiest] += sizes[name]
    return shards


def names_of_servers(parameters: Sequence[Parameter], servers: int) -> list[list[str]]:
    """Return the names of the parameters that each server holds."""
    return shard_map({parameter.name: parameter.size for parameter in parameters}, servers)


@dataclass(frozen=True)
class Push:
    """Gradient that a server applied. Versions of the weights count the server's updates.

    Attributes:
        worker, step: the worker that computed the gradient, and the number of its step, counted from 0.
        read: version of the weights that the gradient was computed with.
        found: version of the weights that it was applied to.
    """

    worker: int
    step: int
    read: int
    found: int

    @property
    def staleness(self) -> int:
        return self.found - self.read


class SynchronousServer(Axis):
    """Server that holds some of the parameters, and updates them once with the gradients of all workers.

    Args:
        group: all ranks, first the workers, then the servers.
        workers: number of workers.
        steps: training steps per worker.
        others: group of the servers, which join the gradient norm.
        dtype: dtype of the gradients that workers push.
    """

    steps_apart = True

    def __init__(
        self, group: ProcessGroup, workers: int, steps: int, others: ProcessGroup | None, dtype=xp.float64
    ) -> None:
        super().__init__(group, others)
        self.workers, self.steps, self.dtype = range(workers), steps, dtype
        self.clocks = [0] * workers  # steps that each worker has ended
        self.pushes_taken: list[Push] = []

    def apply(self, model: Module) -> Module:
        parameters = {parameter.name: parameter for parameter in model.parameters()}
        names = names_of_servers(model.parameters(), self.group.size - len(self.workers))
        self.parameters = [parameters[name] for name in names[self.group.rank - len(self.workers)]]
        size = sum(parameter.size for parameter in self.parameters)
        self.inboxes = [ledger.enter("gradients", xp.empty(size, self.dtype)) for _ in self.workers]
        self.pushes: list[Work] = [self.next_push(worker) for worker in self.workers]
        self.answers: dict[int, Work] = {}  # the last answer to each worker
        return model

    def trained(self, parameters: list[Parameter]) -> list[Parameter]:
        return self.parameters

    def next_push(self, worker: int) -> Work:
        """Begin to receive the next gradient of a worker into its inbox."""
        return irecv(self.inboxes[worker], worker, self.group)

    def sync_gradients(self) -> None:
        """Take one gradient of every worker: their sum is the gradient of the step."""
        for worker in self.workers:
            step = self.clocks[worker]
            self.take_from(worker, step, step)
        use_grad_views(self.parameters, sum(self.inboxes))

    def take_from(self, worker: int, read: int, found: int) -> None:
        """Wait until a worker's gradient is in its inbox. read, found: see ``Push``."""
        self.pushes[worker].wait()
        if worker in self.answers:
            self.answers.pop(worker).wait()  # no waiting: the worker has had it, or could not have pushed
        self.pushes_taken.append(Push(worker, self.clocks[worker], read, found))
        self.clocks[worker] += 1

    def sync_params(self) -> None:
        """Answer all workers."""
        self.answer(self.workers)

    def answer(self, workers: Sequence[int]) -> None:
        """Send the current weights to those of these workers that have steps left, and expect their next pushes."""
        weights = flattened([parameter.data for parameter in self.parameters])
        for worker in workers:
            if self.clocks[worker] < self.steps:
                self.answers[worker] = isend(weights, worker, self.group)
                self.pushes[worker] = self.next_push(worker)

    def regions(self, regions: dict[str, Region], trained: bool = True) -> dict[str, Region]:
        return {parameter.name: regions[parameter.name] for parameter in self.parameters}


class AsynchronousServer(SynchronousServer):
    """Server that updates with each gradient as it comes.

    Args:
        staleness: largest number of steps that a worker may be ahead of the slowest; infinite for no bound.
        order: the arrivals in the order to take them; None to take gradients as they come.
    """

    def __init__(
        self, group: ProcessGroup, workers: int, steps: int, staleness: float, order: Sequence[Arrival] | None
    ) -> None:
        super().__init__(group, workers, steps, None, xp.float32)
        self.staleness = staleness
        self.order = None if order is None else iter(order)
        self.version = 0
        self.read = [0] * workers  # version of the weights that each worker computes with
        self.waiting: list[int] = []  # workers that have no answer yet
        self.last = 0  # worker whose gradient was taken last

    def sync_gradients(self) -> None:
        """Take the next gradient."""
        worker = self.last = next(self.order).worker if self.order is not None else self.first_to_come()
        self.take_from(worker, self.read[worker], self.version)
        use_grad_views(self.parameters, self.inboxes[worker])
        self.waiting.append(worker)

    def first_to_come(self) -> int:
        """Wait for a gradient, and return its worker. Of several, take the first one after the last worker taken."""
        turns = [(self.last + 1 + place) % len(self.workers) for place in self.workers]
        computing = [worker for worker in turns if worker not in self.waiting and self.clocks[worker] < self.steps]
        return computing[wait_any([self.pushes[worker] for worker in computing])]

    def sync_params(self) -> None:
        """Answer the waiting workers that may go on."""
        self.version += 1
        going = [worker for worker in sorted(self.waiting) if may_begin(self.clocks, worker, self.staleness)]
        self.waiting = [worker for worker in self.waiting if worker not in going]
        for worker in going:
            self.read[worker] = self.version
        self.answer(going)


class Worker(Axis):
    """Worker, which pushes its gradients to the servers and pulls its weights from them.

    A synchronous server adds up all pushes, so a worker pushes its float64 sums, which add up to the bits of one
    process. An asynchronous server takes a step with each push, and no server sees the whole gradient. So the worker
    averages and clips the gradient of its own samples, and pushes float32.

    Args:
        group: all ranks, first the workers, then the servers.
        workers: number of workers.
        steps: training steps per worker.
        micro_batches: this worker's micro-batches per step.
        clip: largest norm of this worker's gradient; None for a synchronous server, which clips the sum.
        reduce_dtype: dtype in which gradients are accumulated, and pushed to a synchronous server.
    """

    steps_apart = True

    def __init__(
        self, group: ProcessGroup, workers: int, steps: int, micro_batches: int, clip: float | None = None,
        reduce_dtype=xp.float64,
    ) -> None:  # fmt: skip
        super().__init__(group)
        self.servers = range(workers, group.size)
        self.steps, self.micro_batches, self.clip, self.reduce_dtype = steps, micro_batches, clip, reduce_dtype
        self.pushed_dtype = reduce_dtype if clip is None else xp.float32
        self.clock = 0  # steps that this worker has ended
        self.weights: MasterWeights | None = None

    def apply(self, model: Module) -> Module:
        self.parameters = model.parameters()
        for parameter in self.parameters:
            parameter.grad_dtype = self.reduce_dtype
        pulled = self.parameters
        if (format := current().compute) is not None:
            self.weights = weights = master_weights(self.parameters, format)
            pulled = weights.masters
        else:
            for parameter in self.parameters:
                ledger.enter("parameters", parameter.data)
        computing = {parameter.name: parameter for parameter in self.parameters}
        pulled = {parameter.name: parameter for parameter in pulled}
        names = names_of_servers(self.parameters, len(self.servers))
        self.pushed = [[computing[name] for name in some] for some in names]  # each server's, whose gradients go there
        self.pulled = [[pulled[name] for name in some] for some in names]  # each server's, whose weights come from it
        return model

    def trained(self, parameters: list[Parameter]) -> list[Parameter]:
        """Return no parameters: the servers have the optimizer."""
        return []

    def zero_grad(self) -> None:
        zero_gradients(self.parameters)

    def sync_gradients(self) -> None:
        """Push: begin to send each server the gradients of its parameters, in one message."""
        if self.clip is not None:
            average_gradients(self.parameters, self.micro_batches)
            clip_grad_norm(self.parameters, self.clip)
        self.pushes = [
            isend(flattened([parameter.grad for parameter in parameters], self.pushed_dtype), server, self.group)
            for server, parameters in zip(self.servers, self.pushed, strict=True)
        ]
        self.clock += 1

    def sync_params(self) -> None:
        """Pull: receive the weights from each server. A worker that is too far ahead waits here for its answer.

        After its last step it pulls nothing.
        """
        for push in self.pushes:
            push.wait()
        if self.clock == self.steps:
            return
        for server, parameters in zip(self.servers, self.pulled, strict=True):
            answer = xp.empty(sum(parameter.size for parameter in parameters), xp.float32)
            irecv(answer, server, self.group).wait()
            unflatten(answer, [parameter.data for parameter in parameters])
        if self.weights is not None:
            self.weights.sync_params()

    def regions(self, regions: dict[str, Region], trained: bool = True) -> dict[str, Region]:
        return {} if trained else regions
