"""A worker of a parameter server: it pulls weights, computes gradients, and pushes them. It updates nothing itself."""

from minidist import ledger
from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import irecv, isend
from minidist.nn.layers import Module, Parameter
from minidist.nn.optim.clip import clip_grad_norm
from minidist.nn.optim.optimizers import average_gradients
from minidist.nn.precision.master_weights import MasterWeights, master_weights
from minidist.nn.precision.policy import current
from minidist.parallel.axis import Axis
from minidist.parallel.loosened.full_state import full_from_servers
from minidist.parallel.loosened.shards import names_of_servers
from minidist.parallel.tools.flat import flattened, unflatten


class Worker(Axis):
    """One worker's end: its gradients go to the servers, and its weights come from them.

    A synchronous server adds up what all workers push, so a worker pushes its float64 sums, which add up to the bits of
    one process. To an asynchronous one each push is a step of its own. No server sees all of its parameters there, so
    the worker averages and clips the gradient of its own samples, and pushes float32.

    Args:
        group: all ranks: the workers, and behind them the servers.
        workers: how many of them are workers.
        steps: that each worker takes.
        micro_batches: of this worker in a step.
        clip: to which norm it clips its gradients; None for a synchronous server, which clips their sum.
        reduce_dtype: in which gradients are accumulated, and pushed to a synchronous server.
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
        self.clock = 0  # steps that it has ended
        self.weights: MasterWeights | None = None

    def apply(self, model: Module) -> Module:
        self.parameters = model.parameters()
        self.shapes = {parameter.name: parameter.shape for parameter in self.parameters}
        for parameter in self.parameters:
            parameter.grad_dtype = self.reduce_dtype
        pulled = self.parameters
        if (format := current().compute) is not None:
            self.weights = master_weights(self.parameters, format)
            pulled = self.weights.masters
        else:
            for parameter in self.parameters:
                ledger.hold("parameters", parameter.data)
        computing = {parameter.name: parameter for parameter in self.parameters}
        pulled = {parameter.name: parameter for parameter in pulled}
        names = names_of_servers(self.shapes, len(self.servers))
        self.pushed = [[computing[name] for name in some] for some in names]  # whose gradients go to each server
        self.pulled = [[pulled[name] for name in some] for some in names]  # whose weights come from it
        return model

    def trained(self, parameters: list[Parameter]) -> list[Parameter]:
        """None: the servers have the optimizer."""
        return []

    def zero_grad(self) -> None:
        for parameter in self.parameters:
            parameter.grad = xp.zeros(parameter.shape, parameter.grad_dtype)
            ledger.hold("gradients", parameter.grad)

    def sync_gradients(self) -> None:
        """Push: begin to send each server the gradients of its parameters, as one message."""
        if self.clip is not None:
            average_gradients(self.parameters, self.micro_batches)
            clip_grad_norm(self.parameters, self.clip)
        self.pushes = [
            isend(flattened([parameter.grad for parameter in parameters], self.pushed_dtype), server, self.group)
            for server, parameters in zip(self.servers, self.pushed, strict=True)
        ]
        self.clock += 1

    def sync_params(self) -> None:
        """Pull: take the weights that each server answers with. A worker that is too far ahead gets its answer late.

        After its last step it pulls nothing: there is nothing left to compute.
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

    def full_state(self, arrays: dict) -> dict:
        return full_from_servers(arrays, self.shapes, self.group, self.servers.start)
