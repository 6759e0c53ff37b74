"""Chapter 5: ZeRO, data parallelism without redundant copies.

You may use what is imported below, NumPy, and what you write here. The three stages are built on ``Unit``, which the
library provides: several parameters concatenated into one flat array, padded so that the N ranks of a group own equal
*shards* of it. A unit offers:

    unit.parameters        its parameters, in the order in which they are concatenated
    unit.size              number of their elements
    unit.padded_size       size plus padding, a multiple of N
    unit.shard_size        padded_size / N
    unit.full              all parameters, (padded_size,) of the dtype of unit.shard; None while they are resharded
    unit.master            this rank's shard of them, (shard_size,) float32, which the optimizer updates; in float32 a
                           view of full, until keep_shard_alone
    unit.shard             the same shard as it is sent, (shard_size,): the master itself, float32; with a 16-bit
                           --precision, its numbers in 16 bits
    unit.grad_shard        this rank's shard of the summed gradients, (shard_size,) of reduce_dtype
    unit.reduce_dtype      the dtype in which gradients are summed: float64, or float32 with --reduce-dtype float32
    unit.collect(p)        move the gradient of its parameter p to its place in the unit; p.grad becomes None
    unit.take_gradients()  return the unit's gradients, (padded_size,) of reduce_dtype, zeros where there are none, and
                           leave the unit without any
    unit.use_sharded_grad_views()  after changing grad_shard: make the change visible to the optimizer
    unit.use_unsharded_views()     after setting full: make the parameters views of it
    unit.reshard()                 set full to None; the parameters read NaN until they are views again

``minidist check 5`` grades your code, and ``minidist check --hint 5.3`` gives a hint. ``shard_slice`` and the three
stages have the names and arguments of minidist's own, so the library can train on yours:

    minidist train --dp 3 --zero 3 --impl exercises
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_gather_into_tensor, all_reduce, reduce_scatter_tensor
from minidist.nn.layers import Module, Parameter
from minidist.nn.optim.clip import clip_factor
from minidist.nn.tensor import Tensor
from minidist.parallel.zero import BeforeBackward, Unit

# 5.1  Worksheet: memory per rank
#
# Bytes per parameter, as in chapter 0:
#
#   recipe   weights   gradients   optimizer
#   mixed    2         2           12
#   bf16     2         2           8
#
# Stage 0 is plain data parallelism. Stage 1 shards the optimizer state over the N ranks, stage 2 the gradients too, and
# stage 3 the weights too. Ignore padding and whatever is gathered temporarily.


def model_state_bytes(stage: int, ranks: int, recipe: str) -> float:
    """Bytes that one of N ranks holds per parameter of the model, on average.

    Args:
        stage: 0, 1, 2 or 3.
        ranks: N.
        recipe: "mixed" or "bf16", as in the table above.
    """
    # >>> 5.1
    weights, gradients, optimizer = {"mixed": (2, 2, 12), "bf16": (2, 2, 8)}[recipe]
    if stage >= 1:
        optimizer /= ranks
    if stage >= 2:
        gradients /= ranks
    if stage >= 3:
        weights /= ranks
    return weights + gradients + optimizer
    # <<<


def largest_model(stage: int, ranks: int, recipe: str, device_bytes: int) -> int:
    """The most parameters a model can have if each rank's device offers ``device_bytes`` for these states."""
    # >>> 5.1
    return int(device_bytes / model_state_bytes(stage, ranks, recipe))
    # <<<


def fewest_ranks(stage: int, parameters: int, recipe: str, device_bytes: int) -> int:
    """The smallest number of ranks on which a model with this many parameters fits; 0 if no number is enough.

    No case here needs more than 10,000 ranks.
    """
    # >>> 5.1
    for ranks in range(1, 10_001):
        if parameters * model_state_bytes(stage, ranks, recipe) <= device_bytes:
            return ranks
    return 0
    # <<<


def shard_slice(elements: int, rank: int, ranks: int) -> slice:
    """5.2  A rank's shard of a flat array that is padded at its end so that all shards have the same size.

    Use as little padding as possible: less than one element per rank. The padding counts as part of the array, so a
    slice may extend beyond ``elements``, and even start there.

    Args:
        elements: number of elements before padding; 0 or more.
        rank: from 0 to ``ranks`` - 1; the shards follow each other in rank order, without gaps.
        ranks: number of ranks, at least 1.

    Returns:
        ``slice(start, stop)``, both integers; ``stop - start`` is the same on every rank.
    """
    # >>> 5.2
    length = -(-elements // ranks)  # elements / ranks, rounded up
    return slice(rank * length, (rank + 1) * length)
    # <<<


class ZeroStage1:
    """5.3  Each rank keeps only its shards of the optimizer state.

    One step: ``zero_grad``; backward of every micro-batch but the last under ``no_sync``; backward of the last;
    ``wait_for_gradients``; the optimizer updates ``trained``, this rank's shards; ``sync_params``. Gradients are
    summed, never divided.

    Args:
        model: the model to train.
        blocks: the model's modules that become units of their own; the rest is the root.
        shards: the group over which each unit is sharded.
        replicas: the group of ranks that own the same shards as this one but process other micro-batches (hybrid
            sharding); a group of one rank if there are no others.
        micro_batches: number of them in a step, on the rank with the most.
        algorithm: passed on to the reduce-scatters and all-gathers.
        reduce_dtype: the dtype in which gradients are accumulated and summed, np.float64 or np.float32.
    """

    def __init__(
        self, model: Module, blocks: Sequence[Module], shards: ProcessGroup, replicas: ProcessGroup,
        micro_batches: int, algorithm: str = "auto", reduce_dtype=np.float64,
    ) -> None:  # fmt: skip
        self.shards, self.replicas, self.algorithm, self.micro_batches = shards, replicas, algorithm, micro_batches
        inside = {parameter for block in blocks for parameter in block.parameters()}
        rest = [parameter for parameter in model.parameters() if parameter not in inside]
        self.root = Unit(model, rest, shards, reduce_dtype)
        self.blocks = [Unit(block, block.parameters(), shards, reduce_dtype) for block in blocks]
        self.units = [*self.blocks[::-1], self.root]  # the order in which backward completes them
        for parameter in model.parameters():
            parameter.grad_dtype = reduce_dtype

    @property
    def trained(self) -> list[Parameter]:
        """The parameters that the optimizer updates here: for each one that overlaps a shard, a view of that part."""
        return [piece for unit in self.units for piece in unit.pieces]

    def zero_grad(self) -> None:
        """Begin a step: zero the summed gradients and this rank's own."""
        for unit in self.units:
            unit.clear_shard()
            unit.begin_gradients()

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context for all micro-batches of a step but the last."""
        yield  # nothing is sent during backward in any case

    def wait_for_gradients(self) -> None:
        """End backward: return once each rank has the summed gradients of its shards."""
        for unit in self.units:
            self.reduce(unit)

    def reduce(self, unit: Unit) -> None:
        """Take this rank's gradients of a unit, sum them over all ranks, and add this rank's shard of the sum to
        ``unit.grad_shard``. All ranks of both groups call it together.

        Cost: over ``shards``, (N-1)/N of the unit's padded elements; over ``replicas``, an all-reduce of one shard.
        """
        # >>> 5.3
        gradients = unit.take_gradients()  # (padded_size,)
        total = np.empty(unit.shard_size, unit.reduce_dtype)
        reduce_scatter_tensor(total, gradients, ReduceOp.SUM, self.shards, algorithm=self.algorithm)
        all_reduce(total, ReduceOp.SUM, self.replicas)
        unit.grad_shard += total
        unit.use_sharded_grad_views()
        # <<<

    def sync_params(self) -> None:
        """After the optimizer's step: get the parameters that the other ranks have updated, unit by unit.

        They stay views of ``unit.full``, which is gathered in place. Cost: (N-1)/N of each unit's padded elements.
        """
        # >>> 5.3
        for unit in self.units:
            all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)
        # <<<

    def unshard_all(self) -> None:
        """End of training: leave every rank with all parameters. It has them already."""


class ZeroStage2(ZeroStage1):
    """5.4  Each rank keeps only its shards of the gradients, too.

    In every micro-batch, a unit's gradients are summed over the ranks as soon as backward has completed all of them,
    and this rank keeps its shard of the sum. So all ranks must take part in the same number of sums: a rank with
    fewer than ``micro_batches`` contributes zeros for those it lacks.

    The class is built on ``reduce``, task 5.3, and takes the same arguments as stage 1.
    """

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.done = 0  # micro-batches of this step whose gradients are all summed
        self.awaited = {unit: set(unit.parameters) for unit in self.units}  # parameters whose gradients are incomplete
        for unit in self.units:
            for parameter in unit.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self.on_gradient, unit))

    def zero_grad(self) -> None:
        for unit in self.units:
            unit.clear_shard()
        self.done = 0

    def on_gradient(self, unit: Unit, parameter: Parameter) -> None:
        """Backward calls this once per parameter and micro-batch, as soon as the gradient has been accumulated.

        Collects the gradient at once. If it was the last awaited one of its unit, completes the unit.
        """
        # >>> 5.4
        unit.collect(parameter)
        self.awaited[unit].discard(parameter)
        if not self.awaited[unit]:
            self.complete(unit)
        # <<<

    def complete(self, unit: Unit) -> None:
        """Sum a unit's gradients and prepare for the next micro-batch. Backward completes the root after all others.

        ``self.done`` grows by one per micro-batch.
        """
        # >>> 5.4
        self.awaited[unit] = set(unit.parameters)
        self.reduce(unit)
        if unit is self.root:
            self.done += 1
        # <<<

    def idle_micro_batch(self) -> None:
        """Take part in the sums of a micro-batch that only other ranks have, in their order of units."""
        # >>> 5.4
        for unit in self.units:
            self.complete(unit)
        # <<<

    def wait_for_gradients(self) -> None:
        """End backward: return once each rank has the summed gradients of its shards, of all micro-batches."""
        # >>> 5.4
        while self.done < self.micro_batches:
            self.idle_micro_batch()
        # <<<


class ZeroStage3(ZeroStage2):
    """5.5  Each rank keeps only its shards of the parameters, too.

    A unit's parameters are gathered just before it runs, in forward and again in backward, and resharded right after.
    The root's module is the full model: it runs first and, in backward, is completed last.

    The class is built on ``complete``, task 5.4.

    Args:
        reshard_after_forward: reshard a unit after forward and gather it again for backward. Otherwise its parameters
            stay until backward has completed the unit.
        prefetch: the library gathers the next unit while the current one computes. You may ignore it here.
    """

    def __init__(
        self, model: Module, blocks: Sequence[Module], shards: ProcessGroup, replicas: ProcessGroup,
        micro_batches: int, algorithm: str = "auto", reduce_dtype=np.float64,
        reshard_after_forward: bool = True, prefetch: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(model, blocks, shards, replicas, micro_batches, algorithm, reduce_dtype)
        self.reshard_after_forward, self.prefetch = reshard_after_forward, prefetch
        for unit in self.units:
            unit.keep_shard_alone()  # in a copy of its own; everything else is freed
            unit.module.forward_pre_hook = partial(self.before_forward, unit)
            unit.module.forward_hook = partial(self.after_forward, unit)

    def gather(self, unit: Unit) -> None:
        """Return once a unit has all its parameters: ``full`` is one new array, of the dtype of ``unit.shard``, and the
        parameters are views of it.

        If the unit has them already, nothing is sent.
        """
        # >>> 5.5
        if unit.full is None:
            unit.full = np.empty(unit.padded_size, unit.shard.dtype)
            all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)
            unit.use_unsharded_views()
        # <<<

    def before_forward(self, unit: Unit) -> None:
        """Runs before the unit's module."""
        # >>> 5.5
        self.gather(unit)
        # <<<

    def after_forward(self, unit: Unit, output: Tensor) -> Tensor:
        """Runs after the unit's module, with its output; what it returns replaces the output.

        Given: backward calls ``before_backward`` at this point, before it enters the unit.
        """
        # >>> 5.5
        if self.reshard_after_forward:
            unit.reshard()
        # <<<
        return BeforeBackward.apply(output, partial(self.before_backward, unit))

    def before_backward(self, unit: Unit) -> None:
        """Runs before backward needs the unit's parameters."""
        # >>> 5.5
        self.gather(unit)
        # <<<

    def complete(self, unit: Unit) -> None:
        """As in stage 2. After that, this micro-batch no longer needs the unit's parameters."""
        # >>> 5.5
        super().complete(unit)
        unit.reshard()
        # <<<

    def idle_micro_batch(self) -> None:
        """Given: the calls that a micro-batch would make, in the same order."""
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
        """Nothing to do: each unit is gathered when it is needed."""

    def unshard_all(self) -> None:
        for unit in self.units:
            self.gather(unit)
            unit.module.forward_pre_hook = unit.module.forward_hook = None


# 5.6  Worksheet: traffic of a step
#
# The model has ``parameters`` parameters, sharded without padding. It is trained on ``ranks`` ranks, in groups of
# ``shard`` ranks that share a copy (``shard`` divides ``ranks``; if they are equal, it is pure ZeRO). Every rank has
# ``micro_batches`` in a step. The stages work as yours above: stages 2 and 3 sum gradients in every micro-batch, and
# stage 3 gathers in every micro-batch. Stage 0 is plain data parallelism, with one ring all-reduce of all gradients per
# step; it ignores ``shard``.
#
# The question is how many elements one rank sends per step, on average over the ranks if they differ.


def gathered_elements(
    stage: int, parameters: int, shard: int, micro_batches: int, reshard_after_forward: bool
) -> float:
    """Elements a rank sends in all-gathers of parameters. ``reshard_after_forward`` affects only stage 3."""
    # >>> 5.6
    once = (shard - 1) / shard * parameters
    if stage == 0:
        return 0.0
    if stage == 3:
        return micro_batches * (2 if reshard_after_forward else 1) * once
    return once
    # <<<


def reduced_elements(stage: int, parameters: int, ranks: int, shard: int, micro_batches: int) -> float:
    """Elements a rank sends to sum gradients: reduce-scatters in its group and all-reduces among its replicas; in
    stage 0, the all-reduce over all ranks.
    """
    # >>> 5.6
    if stage == 0:
        return 2 * (ranks - 1) / ranks * parameters
    replicas = ranks // shard
    once = (shard - 1) / shard * parameters + 2 * (replicas - 1) / replicas * parameters / shard
    return once if stage == 1 else micro_batches * once
    # <<<


def stage_3_factor(micro_batches: int, reshard_after_forward: bool) -> float:
    """Elements that pure stage 3 sends per step, relative to plain data parallelism on the same number of ranks."""
    # >>> 5.6
    return micro_batches * (3 if reshard_after_forward else 2) / 2
    # <<<


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
    """5.7  Debugging: linear regression by gradient descent with momentum, its state sharded as in stage 1.

    The gradient is clipped to a norm of at most ``max_norm``. One rank trains correctly. On several ranks the loss
    falls too, and after every step the weights of all ranks agree to the last bit. But they are not the weights that
    one rank ends on. Find out why, and fix it: any number of ranks must do what one rank does with all samples.

    Args:
        features: (this rank's samples, features) float64. Ranks may have different numbers of samples, or none.
        targets: (this rank's samples,) float64.
        samples: number of samples on all ranks together.
        steps, lr, momentum: of gradient descent, starting from zero weights.
        max_norm: the largest norm a gradient may have.
        group: the ranks.

    Returns:
        The loss before each step, and the weights after the last, (features,), the same on every rank.
    """
    size = features.shape[1]
    length = -(-size // group.size)  # of a shard
    weights = np.zeros(length * group.size)  # padded
    mine = weights[group.rank * length : (group.rank + 1) * length]  # this rank's shard, (length,)
    velocity = np.zeros(length)  # its optimizer state
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
        # >>> 5.7
        squares = np.array([gradient @ gradient])
        all_reduce(squares, ReduceOp.SUM, group)
        gradient *= clip_factor(float(np.sqrt(squares[0])), max_norm)
        # === given to the learner
        # gradient *= clip_factor(float(np.linalg.norm(gradient)), max_norm)
        # <<<
        velocity *= momentum
        velocity += gradient
        mine -= lr * velocity
        all_gather_into_tensor(weights, mine.copy(), group)
    return losses, weights[:size].copy()
