"""Data parallelism: every rank trains on its own micro-batches, and the gradients are summed over the ranks.

The gradient of a sum of losses is the sum of their gradients. So ranks that start from the same weights and apply the
same summed gradient always hold the same weights.

Three ways to sum, each hiding more of the cost than the one before:

- ``NaiveDataParallel``: after backward, one all-reduce per parameter.
- ``BucketedDataParallel``: gradients are views of a few large buffers, so messages are fewer and larger.
- ``BucketedDataParallel(overlap=True)``: a bucket is sent as soon as backward has filled it, while backward continues.

This is PyTorch's DistributedDataParallel (Li et al., "PyTorch Distributed: Experiences on Accelerating Data Parallel
Training", VLDB 2020). Simplified: the starting weights are not broadcast, since every rank inits the same ones by name;
and the sum is not divided here, because averaging happens in one place (``average_gradients``).

Gradients are summed in float64 by default, so that neither the order of the ranks nor the algorithm shows in the bits.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from operator import attrgetter, is_

from minidist import ledger
from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.comm.work import Work
from minidist.nn.layers import Module, Parameter
from minidist.nn.precision.policy import current
from minidist.nn.precision.underflow import MasterWeights, master_weights
from minidist.overrides import overridable
from minidist.parallel.axis import Axis, Holds, everything, zero_gradients
from minidist.parallel.tools.messages import views_of

SYNCS = ("naive", "bucketed", "overlapped")


class NaiveDataParallel:
    """Data parallelism with one all-reduce per parameter, after backward.

    Args:
        parameters: the model's parameters, in the same order on every rank.
        group: the data-parallel ranks.
        algorithm: algorithm of the all-reduce.
        reduce_dtype: dtype in which gradients are accumulated and summed.
    """

    def __init__(
        self, parameters: Sequence[Parameter], group: ProcessGroup, algorithm: str = "auto", reduce_dtype=xp.float64
    ) -> None:
        self.parameters, self.group, self.algorithm = list(parameters), group, algorithm
        for parameter in self.parameters:
            parameter.grad_dtype = reduce_dtype

    def zero_grad(self) -> None:
        """Begin a step: set every gradient to zero."""
        zero_gradients(self.parameters)

    def no_sync(self) -> AbstractContextManager:
        """Return a context manager in which backward only accumulates: for all micro-batches of a step but the last."""
        return nullcontext()  # this class never sends during backward

    def wait_for_gradients(self) -> None:
        """End backward: sum every gradient over all ranks, and wait until that is done."""
        for parameter in self.parameters:
            all_reduce(parameter.grad, ReduceOp.SUM, self.group, algorithm=self.algorithm)


class Bucket:
    """Group of parameters whose gradients are views of one flat buffer, which is sent as one message."""

    def __init__(self, parameters: list[Parameter], reduce_dtype) -> None:
        self.parameters = parameters
        size = sum(parameter.size for parameter in parameters)
        self.buffer = ledger.enter("gradients", xp.zeros(size, reduce_dtype))
        self.views = views_of(self.buffer, [parameter.shape for parameter in parameters])
        self.clear()

    def clear(self) -> None:
        """Begin a step: set the buffer to zero, and make all gradients views of it."""
        self.buffer[:] = 0
        for parameter, view in zip(self.parameters, self.views, strict=True):
            parameter.grad = view
        self.awaited = set(self.parameters)  # parameters whose gradient is not complete yet
        self.work: Work | None = None  # the all-reduce, once it is in flight

    def holds_gradients(self) -> bool:
        """Return whether the parameters' gradients are still views of the buffer."""
        return all(map(is_, map(attrgetter("grad"), self.parameters), self.views))


def all_reduce_bucket(bucket: Bucket, group: ProcessGroup, algorithm: str) -> Work | None:
    """Begin to sum a bucket's gradients over the ranks. When the work is done, the bucket's buffer holds the sum.

    Returns None for a group of one rank, which needs no communication.
    """
    if group.size == 1:
        return None
    return all_reduce(bucket.buffer, ReduceOp.SUM, group, async_op=True, algorithm=algorithm)


Hook = Callable[[Bucket, ProcessGroup, str], Work | None]  # such as ``all_reduce_bucket``


class BucketedDataParallel(NaiveDataParallel):
    """Data parallelism with one all-reduce per bucket of gradients; with ``overlap``, started from within backward.

    Backward reaches the last layers first, so buckets are filled from the last parameter to the first.

    Args:
        bucket_mb: size of a bucket in MiB. A larger parameter gets a bucket of its own.
        overlap: send a bucket as soon as it is full, not after backward.
        sum_bucket: function that sums a bucket's gradients over the ranks (in torch: ``register_comm_hook``).
    """

    def __init__(
        self,
        parameters,
        group,
        algorithm="auto",
        reduce_dtype=xp.float64,
        bucket_mb=1.0,
        overlap=True,
        sum_bucket: Hook = all_reduce_bucket,
    ) -> None:
        super().__init__(parameters, group, algorithm, reduce_dtype)
        self.syncing = True
        itemsize = xp.dtype(reduce_dtype).itemsize
        self.buckets = [
            Bucket(some, reduce_dtype) for some in fill_buckets(self.parameters[::-1], bucket_mb * 2**20 / itemsize)
        ]
        self.bucket_of = {parameter: bucket for bucket in self.buckets for parameter in bucket.parameters}
        self.sum_bucket = sum_bucket
        self.finished = False  # whether the gradients have been summed since the last zero_grad
        self.next = 0  # buckets are sent in the same order on every rank, whatever order they fill in
        if overlap:
            for parameter in self.parameters:
                parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def zero_grad(self) -> None:
        for bucket in self.buckets:
            bucket.clear()
        self.next, self.finished = 0, False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        before, self.syncing = self.syncing, False
        try:
            yield
        finally:
            self.syncing = before

    def wait_for_gradients(self) -> None:
        """End a step: send the remaining buckets, and wait until every gradient is the sum over all ranks.

        Raises:
            RuntimeError: if gradients are not in the buckets, so that they would not be summed.
        """
        for bucket in self.buckets:
            if self.finished or not bucket.holds_gradients():
                raise RuntimeError(
                    "the gradients would not be summed: begin each step with zero_grad() of this object, "
                    "not of the model or the optimizer"
                )
        while self.next < len(self.buckets):  # buckets that backward has not filled on this rank
            self._send_next()
        for bucket in self.buckets:
            if bucket.work is not None:
                bucket.work.wait()
        self.finished = True

    def _on_gradient(self, parameter: Parameter) -> None:
        """Send all buckets that are full. Backward calls this when a parameter's gradient is complete."""
        if not self.syncing:
            return
        bucket = self.bucket_of[parameter]
        if bucket.work is not None:
            raise RuntimeError(
                f"the gradient of {parameter.name} is being summed over the ranks already: begin each step with "
                "zero_grad(), and run all backward passes of a step but the last under no_sync()"
            )
        bucket.awaited.discard(parameter)
        while self.next < len(self.buckets) and not self.buckets[self.next].awaited:
            self._send_next()

    def _send_next(self) -> None:
        bucket = self.buckets[self.next]
        bucket.work = self.sum_bucket(bucket, self.group, self.algorithm)
        self.next += 1


bucketed_data_parallel = overridable(BucketedDataParallel)


class DataParallel(Axis):
    """Data parallelism as an axis: every rank holds all parameters, and does all of the optimizer's work.

    Args:
        group: the data-parallel ranks.
        make_reducer: function from parameters to a reducer (DDP's word), which sums their gradients and has the methods
            of ``NaiveDataParallel``; None for buckets that are sent while backward continues.
        holds: predicate: whether a parameter belongs to this axis.
    """

    def __init__(self, group: ProcessGroup, make_reducer: Callable | None = None, holds: Holds = everything) -> None:
        super().__init__(group)
        self.splits_loss = self.splits_batch = group.size > 1  # each rank then has its own micro-batches or chunks
        self.make_reducer = make_reducer or (lambda parameters: bucketed_data_parallel(parameters, group))
        self.holds = holds
        self.weights: MasterWeights | None = None

    def apply(self, model: Module) -> Module:
        """Make the reducer that sums the gradients; store parameters in 16 bits if the policy in force computes so."""
        parameters = list(filter(self.holds, model.parameters()))
        self.reducer = self.make_reducer(parameters)
        if (format := current().compute) is not None:
            self.weights = master_weights(parameters, format)
        return model

    def trained(self, parameters: list[Parameter]) -> list[Parameter]:
        if self.weights is None:
            return parameters
        return [parameter for parameter in parameters if not self.holds(parameter)] + self.weights.masters

    def zero_grad(self) -> None:
        self.reducer.zero_grad()
        for master in self.weights.masters if self.weights else ():
            master.grad = None  # drop the last step's averages

    def no_sync(self) -> AbstractContextManager:
        return self.reducer.no_sync()

    def sync_gradients(self) -> None:
        self.reducer.wait_for_gradients()
        if self.weights is not None:
            self.weights.take_gradients()

    def sync_params(self) -> None:
        """Round master weights to the 16-bit parameters. Every rank has updated all of them, so nothing is sent."""
        if self.weights is not None:
            self.weights.sync_params()


@overridable
def fill_buckets(parameters: Sequence[Parameter], elements: float) -> list[list[Parameter]]:
    """Group consecutive parameters into lists of at most ``elements`` elements; a larger one gets its own list."""
    buckets: list[list[Parameter]] = []
    room = 0.0
    for parameter in parameters:
        if not buckets or parameter.size > room:
            buckets.append([])
            room = elements
        buckets[-1].append(parameter)
        room -= parameter.size
    return buckets


def share_of(rank: int, size: int, count: int) -> range:
    """Return which of ``count`` micro-batches a rank works on: consecutive ones; the first ranks may have one more."""
    each, more = divmod(count, size)
    start = rank * each + min(rank, more)
    return range(start, start + each + (rank < more))
