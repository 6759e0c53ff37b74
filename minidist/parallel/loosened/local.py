"""Local SGD: workers train alone for some steps, then average what they have learned.

In a step of data parallelism each rank sends its gradients, so that all take the same step. Here a *worker* (a rank, or
the ranks that share one model by tensor, pipeline and context parallelism) sends nothing for H steps. Then each worker
subtracts its weights from those at the start of the round. The mean of these differences, the *pseudo-gradient*, is the
gradient that an outer optimizer gets:

    pseudo-gradient = mean over workers of (start - weights), each weighted by its micro-batches
    outer step      SGD with Nesterov momentum, on start
    weights = start, on every worker

so the workers send 1/H of the bytes. Averaging the weights is an outer step of rate 1 without momentum (Stich, "Local
SGD Converges Fast and Communicates Little", 2018, arXiv 1805.09767). DiLoCo trains language models so: AdamW inside, an
outer rate of 0.7 and momentum of 0.9, hundreds of inner steps (Douillard et al., 2023, arXiv 2311.08105). The inner
optimizers' states are never exchanged. Two bugs of a real implementation: the difference had the wrong sign, so the
outer step climbed (torchft #233); and start was not restored after a failure, so differences were taken from other
weights (torchft #238).

With *fragments* the blocks are dealt out to several parts of the model, which take turns, so that fewer bytes travel at
once (Streaming DiLoCo, Douillard et al., 2025, arXiv 2501.18512). Simplified: a fragment's sum does not travel while
the next steps compute.

**Bits.** One step of SGD inside and an outer step of rate 1 are data parallelism, and should have its bits. Subtracting
weights would lose them: a float32 weight keeps only the highest bits of lr * gradient. So where the inner steps are
*linear* in the gradients (SGD without clipping and weight decay), a worker does not subtract. It adds up the float64
sums of its gradients, from which all workers' mean is taken and rounded once, as in data parallelism:

    pseudo-gradient = lr_1 * mean of (sum over the round's steps h of lr_h / lr_1 * gradient_h)

Other optimizers have no such sum. For them the difference of two float32 weights is taken in float64, where it is exact
but for weights of very different sizes, and the sum over all workers is rounded once.
"""

from collections.abc import Sequence

from minidist import ledger
from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.nn.kernels import rounded
from minidist.nn.layers import Module, Parameter
from minidist.nn.optim.optimizers import Optimizer
from minidist.overrides import overridable
from minidist.parallel.axis import Axis
from minidist.parallel.tools.messages import flattened, unflatten


@overridable
def outer_step(data, pseudo_gradient, momentum_buffer, lr: float, momentum: float) -> None:
    """Do one outer step on an array, in place: SGD with Nesterov momentum, as ``torch.optim.SGD(nesterov=True)``.

    Args:
        data: weights at the start of the round, float32; overwritten by those of the next round.
        pseudo_gradient: same shape and dtype as ``data``; positive where the weight went down.
        momentum_buffer: decaying sum of pseudo-gradients, of the same shape, zero before the first step. None without
            momentum.
        lr, momentum: settings of the outer optimizer; with momentum 0 it is SGD.
    """
    step = pseudo_gradient
    if momentum:
        momentum_buffer *= momentum
        momentum_buffer += pseudo_gradient
        step = pseudo_gradient + momentum * momentum_buffer  # Nesterov: looks ahead along the momentum
    data -= lr * step


@overridable
def due(step: int, local_steps: int, fragments: int) -> list[int]:
    """Return the fragments that are joined after a step: each once in ``local_steps``, evenly apart, 0 at their end.

    Args:
        step: number of the step, counted from 1.
        local_steps: H, at least as large as ``fragments``.
        fragments: number of fragments.
    """
    return [f for f in range(fragments) if (step + f * local_steps // fragments) % local_steps == 0]


def fragment_of(name: str, fragments: int) -> int:
    """Return the fragment of a parameter: blocks go to fragments in turn, all other modules to fragment 0."""
    part, _, rest = name.partition(".")
    return int(rest.partition(".")[0]) % fragments if part == "blocks" else 0


class Fragment:
    """Group of a worker's parameters, which the workers join together.

    Args:
        parameters: parameters of the inner optimizer.
        reduce_dtype: dtype of sums over workers.

    Attributes:
        start: parameter name -> its weights at the start of the round.
        lr: learning rate of the round's first step; None before it, and if the inner steps are not linear.
    """

    def __init__(self, parameters: Sequence[Parameter], reduce_dtype) -> None:
        self.parameters, self.reduce_dtype = list(parameters), reduce_dtype
        self.start = {one.name: ledger.enter("optimizer", one.data.copy()) for one in self.parameters}
        self.sums: dict = {}  # sums of linear inner steps: see the module's docstring
        self.lr: float | None = None

    def begin_round(self) -> None:
        """Begin a round from the start weights, which are the same on every worker."""
        for parameter in self.parameters:
            parameter.data[...] = self.start[parameter.name]
        self.sums, self.lr = {}, None

    def add_gradients(self, gradients: dict, lr: float) -> None:
        """Add the gradients of a linear inner step, by name, times its learning rate."""
        self.lr = self.lr or lr
        for parameter in self.parameters:
            name = parameter.name
            self.sums[name] = self.sums.get(name, 0) + (lr / self.lr) * gradients[name]
            ledger.enter("gradients", self.sums[name])

    def displacements(self, micro_batches: int) -> dict:
        """Return start minus weights, times this worker's micro-batches: float64, by name."""
        return {
            parameter.name: (self.start[parameter.name].astype(xp.float64) - parameter.data) * micro_batches
            for parameter in self.parameters
        }

    def mean(self, terms: dict, count: int, group: ProcessGroup, algorithm: str) -> dict:
        """Return the sum of all workers' terms over the count, by name: one message, rounded once, float32."""
        total = flattened([terms[parameter.name] for parameter in self.parameters]).astype(self.reduce_dtype)
        all_reduce(total, ReduceOp.SUM, group, algorithm=algorithm)
        means = {parameter.name: xp.empty(parameter.shape, xp.float32) for parameter in self.parameters}
        unflatten(rounded(total / count, xp.float32), list(means.values()))
        return means


class LocalSGD(Axis):
    """Local SGD as an axis: the first one, outside all axes within a worker.

    Each worker trains by itself, on its own micro-batches. The outer step comes after every ``local_steps``-th step and
    after the last step of the run, which leaves one model. It changes the weights that the inner optimizer trains; the
    axes within the worker then sync them to the model, as after every step.

    Args:
        group: the ranks with the same part of the model, one of each worker.
        micro_batches: this worker's micro-batches per step.
        global_micro_batches: micro-batches of all workers per step.
        steps: total training steps.
        linear: whether the inner optimizer's steps are linear in the gradients: SGD, no clipping, no weight decay.
        local_steps, fragments: arguments of ``due``.
        outer_lr, outer_momentum: settings of the outer optimizer, see ``outer_step``.
        algorithm, reduce_dtype: algorithm of the all-reduce over workers, and dtype of the sums.
    """

    steps_apart = True

    def __init__(
        self, group: ProcessGroup, micro_batches: int, global_micro_batches: int, steps: int, linear: bool,
        local_steps: int, fragments: int, outer_lr: float, outer_momentum: float, algorithm: str, reduce_dtype,
    ) -> None:  # fmt: skip
        super().__init__(group)
        self.micro_batches, self.global_micro_batches = micro_batches, global_micro_batches
        self.step, self.steps, self.linear, self.local_steps = 0, steps, linear, local_steps
        self.count, self.outer_lr, self.outer_momentum = fragments, outer_lr, outer_momentum
        self.algorithm, self.reduce_dtype = algorithm, reduce_dtype

    def apply(self, model: Module) -> Module:
        self.model = model
        return model

    def begin(self, optimizer: Optimizer) -> None:
        """Begin the first round, once the inner optimizer exists. It gets the outer momentum as one more state."""
        self.optimizer = optimizer
        parts: list[list[Parameter]] = [[] for _ in range(self.count)]
        for parameter in optimizer.parameters:
            parts[fragment_of(parameter.name, self.count)].append(parameter)
        self.fragments = [Fragment(part, self.reduce_dtype) for part in parts]
        self.momentum_buffers: dict = {}
        if self.outer_momentum:
            self.momentum_buffers = {p.name: xp.zeros_like(p.data) for p in optimizer.parameters}
            optimizer.kinds["outer_momentum."] = self.momentum_buffers

    def sync_gradients(self) -> None:
        """Keep references to the gradients. The axes within the worker complete these sums in place after this call."""
        self.gradients = {parameter.name: parameter.grad for parameter in self.model.parameters()}

    def sync_params(self) -> None:
        """Take, after the inner step, the outer steps that are due. (Averaging copies, so the sums are still there.)"""
        self.step += 1
        if self.linear:
            for fragment in self.fragments:
                fragment.add_gradients(self.gradients, self.optimizer.lr)
        everything = range(self.count)
        for number in everything if self.step == self.steps else due(self.step, self.local_steps, self.count):
            if self.fragments[number].parameters:  # a pipeline stage may have no parameters of a fragment
                self.join(self.fragments[number])

    def join(self, fragment: Fragment) -> None:
        """Take the outer step on a fragment, the same on every worker."""
        terms = fragment.sums if self.linear else fragment.displacements(self.micro_batches)
        means = fragment.mean(terms, self.global_micro_batches, self.group, self.algorithm)
        for name, mean in means.items():
            pseudo_gradient = fragment.lr * mean if self.linear else mean
            buffer = self.momentum_buffers.get(name)
            outer_step(fragment.start[name], pseudo_gradient, buffer, self.outer_lr, self.outer_momentum)
        fragment.begin_round()
