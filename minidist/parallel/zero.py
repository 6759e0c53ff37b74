"""ZeRO: data parallelism in which no rank keeps what another rank keeps already.

In plain data parallelism every rank holds all parameters, gradients and optimizer state: N identical copies. Here the
parameters are in flat *units* (each transformer block is one, and the rest is the root), a unit is split into N equal
shards, and rank r keeps shard r. Each stage shards one thing more, and is written as a subclass of the stage before:

- ``ZeroStage1``: optimizer state. Gradients are reduce-scattered, each rank updates its shard of the parameters, and
  the parameters are all-gathered.
- ``ZeroStage2``: gradients too. A unit's gradients are reduce-scattered as soon as backward has completed them, and
  only the shard is kept.
- ``ZeroStage3``: parameters too. A unit is unsharded (all-gathered) just before it runs, in forward and again in
  backward, and resharded after it.

Rajbhandari et al., "ZeRO: Memory Optimizations Toward Training Trillion Parameter Models" (SC 2020); DeepSpeed's
stages 1 to 3; PyTorch's FullyShardedDataParallel is stage 3, and its hybrid sharding is the ``replicas`` group here
(Zhao et al., VLDB 2023). Simplified: a shard boundary may fall inside a parameter, as in FSDP's first version, and
a unit's messages are not split into buckets.

With hybrid sharding, stages 2 and 3 reduce-scatter over the shards in every micro-batch, since a rank keeps no more
than its shard; over the replicas one all-reduce of that shard per step is enough (in FSDP2:
``set_requires_all_reduce(False)`` until the last micro-batch).

In a pipeline several micro-batches are in flight on a rank, so stages 2 and 3 would send a unit's gradients, and stage
3 gather its parameters, once for each of them. Memory buys that traffic back: gradients are summed once a step
(``ZeroStage2.summed_once``), and a unit stays unsharded from its first forward to the step's end
(``ZeroStage3.reshard_after_backward``). (Llama 3 shards optimizer state and gradients, and does not reshard after
forward.) A tied weight, which both ends of a pipeline have, must be summed over these before it is sharded: its unit's
gradients are always summed once.

Gradients are only summed here. They are averaged elsewhere, once (``average_gradients``). The rest of the library uses
``Zero``, the last class: the axis of parallelism (axis.py) whose work the stages do.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import pairwise
from typing import Any

from minidist import ledger
from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_gather_into_tensor, all_reduce, reduce_scatter_tensor
from minidist.comm.group import ProcessGroup
from minidist.comm.mesh import init_device_mesh
from minidist.nn.layers import Module, Parameter
from minidist.nn.precision.policy import current
from minidist.nn.tensor import Context, Function, Tensor
from minidist.overrides import overridable
from minidist.parallel.axis import Axis, Holds, everything, use_grad_views
from minidist.parallel.tools.messages import views_of
from minidist.parallel.tools.regions import Region


@overridable
def shard_slice(elements: int, rank: int, ranks: int) -> slice:
    """Return the slice of a flat array that a rank owns, once it is padded at its end to ``ranks`` equal parts."""
    each = -(-elements // ranks)  # rounded up
    return slice(rank * each, (rank + 1) * each)


class Piece(Parameter):
    """The part of a parameter that lies in this rank's shard of a unit: a Parameter of the same name.

    Attributes:
        stretch: start and stop of its elements in the flat parameter.
        place: slice of the shard that holds them.
    """

    def __init__(self, parameter: Parameter, stretch: tuple[int, int], place: slice) -> None:
        super().__init__((0,), decay=parameter.decay)
        self.name, self.stretch, self.place = parameter.name, stretch, place


class Unit:
    """Parameters in one flat array, padded at its end so that all ranks own shards of equal size.

    Args:
        module: the module that computes with them.
        parameters: the unit's parameters, in their order in the array.
        group: the ranks that share the unit.
        reduce_dtype: dtype of the gradients while they are summed.

    Attributes:
        master: this rank's part of the parameters, (shard_size,) float32, which the optimizer updates.
        full: all parameters, (padded_size,), as the model computes with them: float32, or the bits of the 16-bit format
            of the policy in force (``autocast``). None while resharded.
        grad_shard: this rank's part of the summed gradients, (shard_size,) of reduce_dtype.
        pieces: a ``Piece`` for each parameter that overlaps this rank's shard; its data and gradient are views of
            ``master`` and ``grad_shard``.
    """

    def __init__(self, module: Module, parameters: list[Parameter], group: ProcessGroup, reduce_dtype) -> None:
        self.module, self.parameters, self.group, self.reduce_dtype = module, parameters, group, reduce_dtype
        self.size = sum(parameter.size for parameter in parameters)
        self.mine = shard_slice(self.size, group.rank, group.size)
        self.shard_size = self.mine.stop - self.mine.start
        self.padded_size = self.shard_size * group.size
        self.format = current().compute
        self.full: Any = xp.zeros(self.padded_size, parameters[0].dtype if parameters else xp.float32)
        for parameter, view in zip(parameters, self.views(self.full), strict=True):
            view[...] = parameter.data
            parameter.format = self.format
        self.master = self.full[self.mine]
        if self.format is not None:
            self.master = ledger.enter("optimizer", self.master.copy())
            self.full = self.format.encode(self.full)
        self.use_unsharded_views()
        self.grad_shard = ledger.enter("gradients", xp.zeros(self.shard_size, reduce_dtype))
        self.grads = None  # (padded_size,) of reduce_dtype: the gradients of all parameters, or None
        self.pieces: list[Piece] = []
        for parameter, first, last in self.overlaps():
            place = sum(piece.size for piece in self.pieces)
            self.pieces.append(Piece(parameter, (first, last), slice(place, place + last - first)))
            self.pieces[-1].data = self.master[self.pieces[-1].place]

    @property
    def shard(self):
        """This rank's shard of the parameters as other ranks gather it, in the model's format.  (shard_size,)"""
        return self.master if self.format is None else self.format.encode(self.master)

    def views(self, flat) -> list:
        """Return views of a flat array, one for each parameter, in the parameter's shape."""
        return views_of(flat, [parameter.shape for parameter in self.parameters])

    def use_unsharded_views(self) -> None:
        """Make the parameters views of ``full``."""
        ledger.enter("parameters", self.full)
        for parameter, view in zip(self.parameters, self.views(self.full), strict=True):
            parameter.stored = view

    def overlaps(self) -> Iterator[tuple[Parameter, int, int]]:
        """Yield each parameter that overlaps this rank's shard, and start and stop of the elements in the shard."""
        start = self.mine.start  # counted from the parameter's first element
        for parameter in self.parameters:
            first, last = max(start, 0), min(start + self.shard_size, parameter.size)
            if first < last:
                yield parameter, first, last
            start -= parameter.size

    def keep_shard_alone(self) -> None:
        """Keep this rank's shard of the parameters, and free the rest."""
        if self.format is None:
            self.master = ledger.enter("parameters", self.master.copy())  # it was a view of ``full``
        for piece in self.pieces:
            piece.data = self.master[piece.place]
        self.reshard()

    def reshard(self) -> None:
        """Free the full parameters. Until the next all-gather they read as NaN, so that accidental use shows."""
        self.full = None
        for parameter in self.parameters:
            hole = xp.full((), xp.nan, parameter.dtype)
            hole = hole if self.format is None else self.format.encode(hole)
            parameter.stored = xp.broadcast_to(hole, parameter.shape)  # the right shape, in four bytes or two

    def clear_shard(self) -> None:
        """Begin a step: clear the gradients of the last one."""
        self.grad_shard[:] = 0
        for piece in self.pieces:
            piece.grad = None

    def begin_gradients(self) -> None:
        """Make all gradients views of one flat array of zeros."""
        self.grads = ledger.enter("gradients", xp.zeros(self.padded_size, self.reduce_dtype))
        use_grad_views(self.parameters, self.grads)

    def collect(self, parameter: Parameter) -> None:
        """Move a parameter's gradient into the flat array."""
        if self.grads is None:
            self.grads = ledger.enter("gradients", xp.zeros(self.padded_size, self.reduce_dtype))
        view = self.views(self.grads)[self.parameters.index(parameter)]
        view[...] = parameter.grad
        parameter.grad = None

    def take_gradients(self):
        """Return the unit's gradients, zeros if it has none, and drop them here.  (padded_size,)"""
        grads = self.grads if self.grads is not None else xp.zeros(self.padded_size, self.reduce_dtype)
        self.grads = None
        for parameter in self.parameters:
            parameter.grad = None
        return grads

    def use_sharded_grad_views(self) -> None:
        """Make the pieces' gradients views of the summed shard."""
        for piece in self.pieces:
            piece.grad = self.grad_shard[piece.place]


class ZeroStage1:
    """ZeRO stage 1: every rank keeps the optimizer state of its own shard only.

    Args:
        model: the model, whose parameters are moved into flat units.
        blocks: modules of the model that become units of their own; the rest is the root.
        shards: the group over which a unit is sharded.
        replicas: the ranks that hold the same shard (hybrid sharding); without it, a group of one rank.
        micro_batches: number of micro-batches in a step on the rank with the most.
        algorithm: algorithm of the reduce-scatter and the all-gather.
        reduce_dtype: dtype in which gradients are accumulated and summed.
        ignored_params: parameters that stay as they are, in no unit (FSDP2's name for them).

    Attributes:
        summed_once: units whose gradients stay full until the end of the step and are summed then; in stage 1, all.
    """

    def __init__(
        self, model: Module, blocks: Sequence[Module], shards: ProcessGroup, replicas: ProcessGroup,
        micro_batches: int, algorithm: str = "auto", reduce_dtype=xp.float64, *,
        ignored_params: Collection[Parameter] = (),
    ) -> None:  # fmt: skip
        self.shards, self.replicas, self.algorithm, self.micro_batches = shards, replicas, algorithm, micro_batches
        self.blocks, taken = [], set(ignored_params)
        for block in blocks:
            if some := [parameter for parameter in block.parameters() if parameter not in taken]:
                self.blocks.append(Unit(block, some, shards, reduce_dtype))
                taken.update(some)
        rest = [parameter for parameter in model.parameters() if parameter not in taken]
        self.root = Unit(model, rest, shards, reduce_dtype)
        self.units = [*self.blocks[::-1], self.root]  # as backward completes them: the root, with the embedding, last
        self.summed_once = self.units
        self.reducing: tuple | None = None  # the reduce-scatter in flight
        for parameter in model.parameters():
            parameter.grad_dtype = reduce_dtype

    @property
    def trained(self) -> list[Parameter]:
        """The pieces that the optimizer updates on this rank."""
        return [piece for unit in self.units for piece in unit.pieces]

    def zero_grad(self) -> None:
        """Begin a step: set every gradient to zero."""
        for unit in self.units:
            unit.clear_shard()
        for unit in self.summed_once:
            unit.begin_gradients()

    def no_sync(self) -> AbstractContextManager:
        """Return a context manager that does nothing, for all micro-batches of a step but the last.

        Stage 1 sums gradients once a step without it. Stages 2 and 3 have no room for more than a shard, so they send
        in every micro-batch, but for units in ``summed_once``.
        """
        return nullcontext()

    def wait_for_gradients(self) -> None:
        """End backward: start the remaining sums, and wait until this rank has the sums of its shards."""
        for unit in self.summed_once:
            self.reduce(unit)
        self.sum_replicas()

    def reduce(self, unit: Unit) -> None:
        """Begin to sum a unit's gradients over the ranks that share it, and end the previous such sum."""
        flat = unit.take_gradients()
        total = xp.empty(unit.shard_size, unit.reduce_dtype)
        work = reduce_scatter_tensor(total, flat, ReduceOp.SUM, self.shards, async_op=True, algorithm=self.algorithm)
        self.wait_for_pending()
        self.reducing = unit, total, work, flat  # the work needs the flat gradients until it ends

    def wait_for_pending(self) -> None:
        """Wait for the reduce-scatter in flight, and add this rank's shard of the sum to ``grad_shard``."""
        if self.reducing is not None:
            unit, total, work, _ = self.reducing
            self.reducing = None
            work.wait()
            unit.grad_shard += total
            unit.use_sharded_grad_views()

    def sum_replicas(self) -> None:
        """End the sums over ``shards``, then sum over ``replicas``: once a step."""
        self.wait_for_pending()
        for unit in self.units:
            all_reduce(unit.grad_shard, ReduceOp.SUM, self.replicas)

    def sync_params(self) -> None:
        """Gather, after the optimizer's step, the parameters that the other ranks have updated."""
        for unit in self.units:
            all_gather_into_tensor(unit.full, unit.shard, self.shards, algorithm=self.algorithm)


class ZeroStage2(ZeroStage1):
    """ZeRO stage 2: every rank keeps only its shard of the gradients, too. Backward sums a unit's as they complete.

    That happens in every micro-batch, so all ranks must take part equally often: one that has fewer than
    ``micro_batches`` adds zeros for the missing ones. Units in ``summed_once``, by default none, are as in stage 1.
    """

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self.summed_once = []
        self.done = 0  # micro-batches of this step
        self.awaited = {unit: set(unit.parameters) for unit in self.units}
        for unit in self.units:
            for parameter in unit.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self.on_gradient, unit))

    def zero_grad(self) -> None:
        super().zero_grad()
        self.done = 0

    def on_gradient(self, unit: Unit, parameter: Parameter) -> None:
        """Collect a parameter's complete gradient, and complete the unit if it was its last. Backward calls this."""
        if unit not in self.summed_once:  # otherwise it is in its place
            unit.collect(parameter)
        self.awaited[unit].discard(parameter)
        if not self.awaited[unit]:
            self.complete(unit)

    def complete(self, unit: Unit) -> None:
        """Begin to sum the gradients of a unit, all of which are complete, unless it is in ``summed_once``."""
        self.awaited[unit] = set(unit.parameters)
        if unit not in self.summed_once:
            self.reduce(unit)
        self.done += unit is self.root

    def wait_for_gradients(self) -> None:
        while self.done < self.micro_batches:
            self.idle_micro_batch()
        super().wait_for_gradients()

    def idle_micro_batch(self) -> None:
        """Take part in the collectives of a micro-batch that only other ranks have."""
        for unit in self.units:
            self.complete(unit)


class ZeroStage3(ZeroStage2):
    """ZeRO stage 3: every rank keeps only its shard of the parameters, too. A unit is unsharded to run, then resharded.

    Args:
        reshard_after_forward: reshard a unit after forward and gather it again for backward: less memory, 3 (N-1)/N M
            of traffic. Otherwise its parameters stay, and the traffic is 2 (N-1)/N M.
        prefetch: gather the next unit's parameters while the current one computes.

    Attributes:
        reshard_after_backward: reshard a unit after each backward; otherwise at the end of the step.
    """

    reshard_after_backward = True

    def __init__(self, *arguments, reshard_after_forward: bool = True, prefetch: bool = False, **options) -> None:
        super().__init__(*arguments, **options)
        self.reshard_after_forward, self.prefetch = reshard_after_forward, prefetch
        self.gathering: dict[Unit, tuple] = {}  # unit -> its full parameters, and the all-gather that fills them
        self.next_forward = dict(pairwise([self.root, *self.blocks]))
        self.next_backward = dict(pairwise([self.root, *self.blocks[::-1]]))
        for unit in self.units:
            unit.keep_shard_alone()
            unit.module.register_forward_pre_hook(partial(self.before_forward, unit))
            unit.module.register_forward_hook(partial(self.after_forward, unit))

    def before_forward(self, unit: Unit) -> None:
        self.unshard(unit, self.next_forward.get(unit))

    def after_forward(self, unit: Unit, output: Tensor) -> Tensor:
        if self.reshard_after_forward:
            unit.reshard()
        return BeforeBackward.apply(output, partial(self.before_backward, unit))

    def before_backward(self, unit: Unit) -> None:
        self.unshard(unit, self.next_backward.get(unit))

    def complete(self, unit: Unit) -> None:
        super().complete(unit)
        if self.reshard_after_backward:
            unit.reshard()

    def wait_for_gradients(self) -> None:
        super().wait_for_gradients()
        if not self.reshard_after_backward:
            for unit in self.units:
                unit.reshard()

    def unshard(self, unit: Unit, following: Unit | None) -> None:
        """Wait until a unit has its full parameters; with ``prefetch``, start the next unit's all-gather first."""
        self.start_gather(unit)
        if self.prefetch and following is not None:
            self.start_gather(following)
        if unit in self.gathering:
            unit.full, work = self.gathering.pop(unit)
            work.wait()
            unit.use_unsharded_views()

    def start_gather(self, unit: Unit) -> None:
        if unit.full is None and unit not in self.gathering:
            shard = unit.shard
            flat = ledger.enter("parameters", xp.empty(unit.padded_size, shard.dtype))
            work = all_gather_into_tensor(flat, shard, self.shards, async_op=True, algorithm=self.algorithm)
            self.gathering[unit] = flat, work

    def idle_micro_batch(self) -> None:
        """Make the calls of a micro-batch, in the same order, without computing."""
        self.before_forward(self.root)
        for unit in self.blocks:
            self.before_forward(unit)
            self.after_forward(unit, Tensor(0.0))
        self.after_forward(self.root, Tensor(0.0))
        self.before_backward(self.root)
        for unit in self.blocks[::-1]:
            self.before_backward(unit)
            self.complete(unit)
        self.complete(self.root)

    def sync_params(self) -> None:
        """Do nothing: a unit gathers its parameters before it runs."""


class BeforeBackward(Function):
    """Identity that, in backward, calls a function before it passes the gradient on."""

    @staticmethod
    def forward(ctx: Context, x, call: Callable[[], None]):
        ctx.call, ctx.rounds = call, False  # the loss passes through here too, and must not be rounded to bf16
        return x

    @staticmethod
    def backward(ctx: Context, gradient):
        ctx.call()
        return gradient, None


STAGES = {1: ZeroStage1, 2: ZeroStage2, 3: ZeroStage3}
OVERRIDABLE_STAGES = {number: overridable(stage) for number, stage in STAGES.items()}


class Zero(Axis):
    """ZeRO as an axis: data-parallel ranks shard the state that plain data parallelism replicates, by stage.

    Expert parallelism needs two such axes, each with its own parameters: one shards the experts over the ranks that
    hold the same ones (expert data parallelism), the other shards the rest over all data-parallel ranks.

    Args:
        group: the data-parallel ranks.
        stage: 1, 2 or 3.
        shard: number of adjacent ranks that share one copy; such sets of ranks are replicas (hybrid sharding).
        settings: keyword arguments of the stage: algorithm, reduce_dtype; stage 3's reshard_after_forward, prefetch.
        pipelined: whether a pipeline runs the model.
        once: whether stages 2 and 3 sum gradients once a step, and keep them full until then.
        holds: predicate: whether a parameter belongs to this axis, where there are two.
    """

    splits_loss = splits_batch = True  # each rank has micro-batches, or sequence chunks, of its own

    def __init__(
        self, group: ProcessGroup, stage: int, shard: int, settings: dict[str, Any], pipelined: bool = False,
        once: bool = False, holds: Holds = everything,
    ) -> None:  # fmt: skip
        mesh = init_device_mesh((group.size // shard, shard), mesh_dim_names=("replicate", "shard"), group=group)
        self.shards, self.replicas = mesh.get_group("shard"), mesh.get_group("replicate")
        # With two such axes, sums over all parameters cross a third one (parallelize.py: expert_axes).
        super().__init__(group, self.shards if holds is everything else None)
        self.stage, self.settings, self.pipelined, self.once, self.holds = stage, settings, pipelined, once, holds
        # In a pipeline, or with experts, all ranks run the same number of micro-batches, so none idles.
        self.may_idle = not pipelined and holds is everything

    def apply(self, model: Any) -> Module:
        """Move the parameters into flat units: one for each block, and one for the rest."""
        micro_batches = self.most_micro_batches if self.may_idle else 0
        arguments = model, model.blocks, self.shards, self.replicas, micro_batches
        if self.may_idle and not self.once:
            self.zero = OVERRIDABLE_STAGES[self.stage](*arguments, **self.settings)
            return model
        # Overrides do not support ignored_params and summed_once, so the library's own stages run here.
        ignored = {parameter for parameter in model.parameters() if not self.holds(parameter)}
        self.zero = STAGES[self.stage](*arguments, **self.settings, ignored_params=ignored)
        if isinstance(self.zero, ZeroStage2):
            self.zero.summed_once = [
                unit for unit in self.zero.units if self.once or any(one.summed_late for one in unit.parameters)
            ]
        if self.pipelined and isinstance(self.zero, ZeroStage3):
            self.zero.reshard_after_backward = self.zero.reshard_after_forward
        return model

    def trained(self, parameters: list[Parameter]) -> list[Parameter]:
        return [parameter for parameter in parameters if not self.holds(parameter)] + self.zero.trained

    def regions(self, regions: dict[str, Region], trained: bool = True) -> dict[str, Region]:
        """Return flat regions: a piece is the stretch of its parameter that lies in this rank's shard.

        If not ``trained``, stages 1 and 2, which gather after each step, have the full parameters; stage 3 has none.
        """
        if not trained and self.stage < 3:
            return regions
        here = {parameter.name for unit in self.zero.units for parameter in unit.parameters}
        others = {name: region for name, region in regions.items() if name not in here}
        pieces = self.zero.trained if trained else ()
        return others | {piece.name: regions[piece.name].stretch(*piece.stretch) for piece in pieces}

    def zero_grad(self) -> None:
        if self.may_idle:
            self.zero.micro_batches = self.most_micro_batches
        self.zero.zero_grad()

    def no_sync(self) -> AbstractContextManager:
        return self.zero.no_sync()

    def sync_gradients(self) -> None:
        self.zero.wait_for_gradients()

    def sync_params(self) -> None:
        self.zero.sync_params()
