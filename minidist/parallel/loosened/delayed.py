"""Delayed updates: gradients travel while the next step computes, and are applied one step late.

    step               t                  t + 1              t + 2
    computes           gradients of t     of t + 1           of t + 2
    travels meanwhile  of t - 1           of t               of t + 1
    then applies       of t - 1           of t               of t + 1

So the sum overlaps with a whole step, where overlapping with backward gives it only part of one. The price: each
gradient belongs to the weights before the last update. On a quadratic, gradient descent then stays stable only up to
half the learning rate. The first step has nothing to apply and changes nothing; the last step's gradients would come
too late, and are not sent.

ZeRO-Offload delays its updates to hide the optimizer on the CPU (Ren et al., 2021, arXiv 2101.06840: "delayed
parameter update"); PipeDream-2BW has the same delay of one step, to keep the stages of a pipeline busy (Narayanan et
al., "Memory-Efficient Pipeline-Parallel DNN Training", 2021, arXiv 2006.09503). Simplified: the delay is there from the
first step on, where ZeRO-Offload begins with usual steps.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

from minidist import ledger
from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.comm.work import Work
from minidist.nn.layers import Parameter
from minidist.parallel.axis import use_grad_views


class DelayedDataParallel:
    """Data parallelism one step late: one flat buffer of gradients fills while another, of the last step, is in flight.

    Args:
        parameters: the model's parameters, in the same order on every rank.
        group: the data-parallel ranks.
        algorithm, reduce_dtype: algorithm of the all-reduce, and dtype of the sums.
        steps: total training steps.
    """

    def __init__(
        self, parameters: Sequence[Parameter], group: ProcessGroup, algorithm: str, reduce_dtype, steps: int
    ) -> None:
        self.parameters, self.algorithm, self.steps_left = list(parameters), algorithm, steps
        self.group = group.duplicate()  # so that no other collective waits behind these sums
        size = sum(parameter.size for parameter in self.parameters)
        for parameter in self.parameters:
            parameter.grad_dtype = reduce_dtype
        self.filling, self.travelling = (ledger.enter("gradients", xp.zeros(size, reduce_dtype)) for _ in range(2))
        self.work: Work | None = None  # the sum in flight

    def zero_grad(self) -> None:
        """Begin a step: set every gradient to zero."""
        self.filling[:] = 0
        use_grad_views(self.parameters, self.filling)

    def no_sync(self) -> AbstractContextManager:
        """Return a context manager that does nothing, as this class never sends during backward."""
        return nullcontext()

    def wait_for_gradients(self) -> None:
        """End backward: start the sum of this step's gradients, and wait for that of the previous step.

        After the first step no parameter has a gradient.
        """
        arrived, self.work = self.work, None
        if arrived is not None:
            arrived.wait()
        self.steps_left -= 1
        if self.steps_left:
            self.work = all_reduce(self.filling, ReduceOp.SUM, self.group, async_op=True, algorithm=self.algorithm)
        self.filling, self.travelling = self.travelling, self.filling
        use_grad_views(self.parameters, self.filling)
        for parameter in self.parameters if arrived is None else ():
            parameter.grad = None
