"""Chapter 5: ZeRO, data parallelism in which no rank keeps what another rank keeps already.

You may use what is imported below, NumPy, and what you write here. The three stages are built on ``Unit``, which the
library gives you: some parameters side by side in one flat array, padded so that the N ranks of a group own equal
*shards* of it. This is what a unit has for you:

    unit.parameters        the parameters in it, in the order in which they lie
    unit.size              their elements together
    unit.padded_size       those with the padding; a multiple of N
    unit.shard_size        padded_size / N
    unit.full              all parameters, (padded_size,) float32; None where they are given up
    unit.master            this rank's part of them, (shard_size,) float32, which the optimizer updates
    unit.shard             the same as it is sent: the master itself, unless the run has a --precision of 16 bits
    unit.grad_shard        this rank's part of the summed gradients, (shard_size,) of reduce_dtype
    unit.reduce_dtype      in which gradients are summed
    unit.collect(p)        move the gradient of its parameter p to its place among the unit's; p.grad is None then
    unit.take_gradients()  the unit's gradients, (padded_size,) of reduce_dtype, zeros where there are none; it has none
                           afterwards
    unit.show_gradients()  after grad_shard has changed: the optimizer is to see it
    unit.show(flat)        the parameters become views of ``flat``, (padded_size,)
    unit.reshard()         full becomes None, and the parameters of all ranks become NaN until they are shown again

``minidist check 5`` judges, ``minidist check --hint 5.3`` helps. ``shard_slice`` and the three stages have the names
and arguments of minidist's own, so the library can train on them:

    minidist train --dp 3 --zero 3 --impl exercises
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_gather_into_tensor, all_reduce, reduce_scatter_tensor
from minidist.nn.clip import clip_factor
from minidist.nn.layers import Module, Parameter
from minidist.nn.tensor import Tensor
from minidist.parallel.tools.units import Unit
from minidist.parallel.zero import BeforeBackward

# 5.1  Worksheet: what a rank holds
#
# Bytes of each parameter, as in chapter 0:
#
#   recipe   weights   gradients   optimizer
#   mixed    2         2           12
#   bf16     2         2           8
#
# Stage 0 is plain data parallelism. Stage 1 shards the optimizer's states over the N ranks, stage 2 the gradients too,
# stage 3 the weights too. Padding, and what is gathered for a moment, are not counted.


def model_state_bytes(stage: int, ranks: int, recipe: str) -> float:
    """The bytes that one of N ranks holds, on average for each parameter of the model.

    Args:
        stage: 0, 1, 2 or 3.
        ranks: N.
        recipe: "mixed" or "bf16", as in the table above.
    """
    raise NotImplementedError("task 5.1")


def largest_model(stage: int, ranks: int, recipe: str, device_bytes: int) -> int:
    """How many parameters a model can have at most, if each rank has a device of so many bytes for these states."""
    raise NotImplementedError("task 5.1")


def fewest_ranks(stage: int, parameters: int, recipe: str, device_bytes: int) -> int:
    """The smallest number of ranks on which a model of so many parameters fits; 0 where no number is enough.

    It never takes more than 10,000 ranks here.
    """
    raise NotImplementedError("task 5.1")


def shard_slice(elements: int, rank: int, ranks: int) -> slice:
    """5.2  Which part of a flat array a rank owns, when it is padded at its end so that all parts are equally long.

    No more padding than it takes: less than one element for each rank. The padding counts as part of the array, so a
    slice may reach beyond ``elements``, and even begin there.

    Args:
        elements: of the array before it is padded; 0 or more.
        rank: from 0 to ``ranks`` - 1; the ranks' parts lie in their order, without gaps.
        ranks: their number, at least 1.

    Returns:
        ``slice(start, stop)``, both whole numbers; ``stop - start`` is the same on every rank.
    """
    raise NotImplementedError("task 5.2")


class ZeroStage1:
    """5.3  Every rank keeps the optimizer's states of its shards alone.

    A step goes like this: ``zero_grad``; backward of all micro-batches but the last within ``no_sync``; backward of the
    last one; ``wait_for_gradients``; the optimizer updates ``trained``, this rank's shards; ``sync_params``. Nothing is
    divided: gradients are summed.

    Args:
        model: whose parameters are trained.
        blocks: the modules of it that become units of their own; the rest is the root.
        shards: the group whose ranks share out each unit.
        replicas: the group of the ranks that own the same shards as this one, but have micro-batches of their own
            (hybrid sharding); a group of one rank where there are no others.
        rounds: how many micro-batches the rank with the most of them has in a step.
        algorithm: of the reduce-scatters and all-gathers, as their argument of that name takes it.
        reduce_dtype: gradients are accumulated and summed in it.
    """

    def __init__(
        self, model: Module, blocks: Sequence[Module], shards: ProcessGroup, replicas: ProcessGroup, rounds: int,
        algorithm: str = "auto", reduce_dtype=np.float64,
    ) -> None:  # fmt: skip
        self.shards, self.replicas, self.rounds, self.algorithm = shards, replicas, rounds, algorithm
        inside = {parameter for block in blocks for parameter in block.parameters()}
        rest = [parameter for parameter in model.parameters() if parameter not in inside]
        self.root = Unit(model, rest, shards, reduce_dtype)
        self.blocks = [Unit(block, block.parameters(), shards, reduce_dtype) for block in blocks]
        self.units = [*self.blocks[::-1], self.root]  # the order in which backward completes them
        for parameter in model.parameters():
            parameter.grad_dtype = reduce_dtype

    @property
    def trained(self) -> list[Parameter]:
        """What the optimizer updates on this rank: views of the shards, of each parameter that reaches into one."""
        return [piece for unit in self.units for piece in unit.pieces]

    def zero_grad(self) -> None:
        """Begin a step: the summed gradients are zero, and so are this rank's own."""
        for unit in self.units:
            unit.clear_shard()
            unit.begin_gradients()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """All micro-batches of a step but the last go here."""
        yield  # nothing is sent during backward in any case

    def wait_for_gradients(self) -> None:
        """End backward: return when each rank has the summed gradients of its shards."""
        for unit in self.units:
            self.reduce(unit)

    def reduce(self, unit: Unit) -> None:
        """Take this rank's gradients of a unit, sum them over all ranks, and add this rank's shard of that to
        ``unit.grad_shard``. All ranks of both groups call it together.

        Cost: over ``shards``, (N-1)/N of the unit's padded elements; over ``replicas`` an all-reduce of one shard.
        """
        raise NotImplementedError("task 5.3")

    def sync_params(self) -> None:
        """After the optimizer's step: every rank gets the parameters that the others have updated, unit by unit.

        The parameters stay views of ``unit.full``. Cost: (N-1)/N of each unit's padded elements.
        """
        raise NotImplementedError("task 5.3")

    def unshard_all(self) -> None:
        """Training is over: every rank gets all parameters, for good. It has them already."""


class ZeroStage2(ZeroStage1):
    """5.4  Every rank keeps the gradients of its shards alone, too.

    A unit's gradients are summed over the ranks as soon as backward has completed them all, in every micro-batch, and
    then this rank keeps its shard of the sum. So all ranks have to take part in equally many sums: a rank that has
    fewer micro-batches than ``rounds`` adds zeros for those that it lacks.

    It is built on ``reduce``, task 5.3, and takes the same arguments as stage 1.
    """

    def __init__(self, *arguments) -> None:
        super().__init__(*arguments)
        self.done = 0  # micro-batches of this step whose gradients have all been summed
        self.awaited = {unit: set(unit.parameters) for unit in self.units}  # whose gradients are not complete yet
        for unit in self.units:
            for parameter in unit.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self.on_gradient, unit))

    def zero_grad(self) -> None:
        for unit in self.units:
            unit.clear_shard()
        self.done = 0

    def on_gradient(self, unit: Unit, parameter: Parameter) -> None:
        """Backward calls this for each parameter, once in each micro-batch, as soon as its gradient is complete.

        Collects the gradient at once. If it was the last that was awaited of its unit, the unit is complete.
        """
        raise NotImplementedError("task 5.4")

    def complete(self, unit: Unit) -> None:
        """Sum a unit's gradients, and be ready for the next micro-batch. Backward completes the root after all others.

        ``self.done`` grows by one in each micro-batch.
        """
        raise NotImplementedError("task 5.4")

    def idle_round(self) -> None:
        """Take part in the sums of a micro-batch that only other ranks have, in the same order of units as they do."""
        raise NotImplementedError("task 5.4")

    def wait_for_gradients(self) -> None:
        """End backward: return when each rank has the summed gradients of its shards, of all ``rounds``."""
        raise NotImplementedError("task 5.4")


class ZeroStage3(ZeroStage2):
    """5.5  Every rank keeps the parameters of its shards alone, too.

    A unit's parameters are gathered just before it runs, in forward and again in backward, and given up after it. The
    root's module is the whole model: it runs first and, in backward, is completed last.

    It is built on ``complete``, task 5.4.

    Args:
        reshard_after_forward: give a unit's parameters up after forward, and gather them again for backward. Otherwise
            they stay until backward has completed the unit.
        prefetch: the library gathers the next unit while the present one computes. Here it may be ignored.
    """

    def __init__(
        self, model: Module, blocks: Sequence[Module], shards: ProcessGroup, replicas: ProcessGroup, rounds: int,
        algorithm: str = "auto", reduce_dtype=np.float64, reshard_after_forward: bool = True, prefetch: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(model, blocks, shards, replicas, rounds, algorithm, reduce_dtype)
        self.reshard_after_forward, self.prefetch = reshard_after_forward, prefetch
        for unit in self.units:
            unit.keep_shard_alone()  # a copy of its own; all else is given up
            unit.module.forward_pre_hook = partial(self.before_forward, unit)
            unit.module.forward_hook = partial(self.after_forward, unit)

    def gather(self, unit: Unit) -> None:
        """Return when a unit has all its parameters: ``full`` is one new array, and the parameters are views of it.

        Where it has them already, nothing is sent.
        """
        raise NotImplementedError("task 5.5")

    def before_forward(self, unit: Unit) -> None:
        """Called before the unit's module runs."""
        raise NotImplementedError("task 5.5")

    def after_forward(self, unit: Unit, output: Tensor) -> Tensor:
        """Called with what the unit's module has put out; what it returns stands in its place.

        Given: from there backward calls ``before_backward``, before it goes on into the unit.
        """
        raise NotImplementedError("task 5.5")
        return BeforeBackward.apply(output, partial(self.before_backward, unit))

    def before_backward(self, unit: Unit) -> None:
        """Called before backward needs the unit's parameters."""
        raise NotImplementedError("task 5.5")

    def complete(self, unit: Unit) -> None:
        """As in stage 2; and the unit's parameters are needed no longer in this micro-batch."""
        raise NotImplementedError("task 5.5")

    def idle_round(self) -> None:
        """Given: what would be called, in the same order, if this rank had a micro-batch."""
        nothing = Tensor(0.0)
        self.before_forward(self.root)
        for unit in self.blocks:
            self.before_forward(unit)
            self.after_forward(unit, nothing)
        self.after_forward(self.root, nothing)
        self.before_backward(self.root)
        for unit in self.blocks[::-1]:
            self.before_backward(unit)
            self.complete(unit)
        self.complete(self.root)

    def sync_params(self) -> None:
        """Nothing to do: whoever needs a parameter gathers it."""

    def unshard_all(self) -> None:
        for unit in self.units:
            self.gather(unit)
            unit.module.forward_pre_hook = unit.module.forward_hook = None


# 5.6  Worksheet: what a step costs in messages
#
# The model has so many parameters, cut into shards without padding. It is trained on ``ranks`` ranks, in groups of
# ``shard`` ranks that share a copy (``shard`` divides ``ranks``; pure ZeRO where they are equal). Every rank has
# ``rounds`` micro-batches in a step. The stages work as yours above: stages 2 and 3 sum the gradients in each of them,
# and stage 3 gathers in each of them. Stage 0 is plain data parallelism, with one ring all-reduce of all gradients in a
# step, and takes no notice of ``shard``.
#
# Asked for is what one rank sends in a step, in elements; on average over the ranks, should they differ.


def gathered_elements(stage: int, parameters: int, shard: int, rounds: int, reshard_after_forward: bool) -> float:
    """What a rank sends in all-gathers of parameters. ``reshard_after_forward`` is for stage 3 alone."""
    raise NotImplementedError("task 5.6")


def reduced_elements(stage: int, parameters: int, ranks: int, shard: int, rounds: int) -> float:
    """What a rank sends to sum gradients: reduce-scatters in its group, and all-reduces among its replicas; in stage 0
    the all-reduce of all ranks.
    """
    raise NotImplementedError("task 5.6")


def stage_3_factor(rounds: int, reshard_after_forward: bool) -> float:
    """How many times as many elements pure stage 3 sends in a step as plain data parallelism on as many ranks."""
    raise NotImplementedError("task 5.6")


def train_sharded(
    features: np.ndarray,
    targets: np.ndarray,
    samples: int,
    steps: int,
    lr: float,
    momentum: float,
    max_norm: float,
    group: ProcessGroup,
) -> tuple[list[float], np.ndarray]:
    """5.7  Debugging: linear regression by gradient descent with momentum, its states sharded as in stage 1.

    The gradient is clipped so that its norm is at most ``max_norm``. On one rank all is well. On several the loss falls
    too, and after every step the weights of all ranks agree to the last bit. But they are not the weights that one rank
    ends on. Find out why, and mend it: any number of ranks has to do what one rank does with all samples.

    Args:
        features: (this rank's samples, features) float64. Ranks may have different numbers of samples, or none.
        targets: (this rank's samples,) float64.
        samples: how many samples all ranks have together.
        steps, lr, momentum: of gradient descent, from weights that are zero.
        max_norm: the greatest norm of a gradient.
        group: the ranks.

    Returns:
        The loss before each step, and the weights after the last, (features,), the same on every rank.
    """
    size = features.shape[1]
    length = -(-size // group.size)  # of a shard
    weights = np.zeros(length * group.size)  # padded
    mine = weights[group.rank * length : (group.rank + 1) * length]  # this rank's shard, (length,)
    velocity = np.zeros(length)  # the optimizer's state of it
    losses = []
    for _ in range(steps):
        errors = features @ weights[:size] - targets  # (this rank's samples,)
        loss = np.array([errors @ errors / samples])
        all_reduce(loss, ReduceOp.SUM, group)
        losses.append(float(loss[0]))
        gradients = np.zeros(len(weights))
        gradients[:size] = 2 * features.T @ errors / samples
        gradient = np.empty(length)
        reduce_scatter_tensor(gradient, gradients, ReduceOp.SUM, group)
        gradient *= clip_factor(float(np.linalg.norm(gradient)), max_norm)
        velocity *= momentum
        velocity += gradient
        mine -= lr * velocity
        all_gather_into_tensor(weights, mine.copy(), group)
    return losses, weights[:size].copy()
