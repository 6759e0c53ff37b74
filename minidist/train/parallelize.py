"""The one place where axes of parallelism meet.

``parallelize`` composes the axes that a layout names, in the order in which they split the model: tp splits heads, cp
splits sequences, pp splits layers, and the data axis, plain or ZeRO, comes last; a dense model on one rank has only
that one. With ep there are two data axes, one of them for the experts, and the axis that balances the experts follows.
Local SGD comes first: it joins workers, and all other axes lie within one. Each axis implements the protocol in
parallel/axis.py. The ``ParallelModel`` that ``parallelize`` returns asks them in turn; it knows only the pipeline by
name, because that runs the micro-batches. (rules.py says which axes can be combined.)
"""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import lru_cache, partial

import numpy as np

from minidist import trace
from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_gather_into_tensor, all_reduce, broadcast
from minidist.comm.group import ProcessGroup
from minidist.comm.mesh import DeviceMesh
from minidist.data.packing import RANDOM
from minidist.nn.data import MicroBatch
from minidist.nn.gpt import GPT
from minidist.nn.layers import Module, Parameter
from minidist.nn.loss import IGNORED
from minidist.nn.recompute import recompute_blocks
from minidist.parallel.axis import Axis, Holds, everything
from minidist.parallel.compression.hook import Compressor
from minidist.parallel.context import ContextParallel
from minidist.parallel.data import (
    BucketedDataParallel,
    DataParallel,
    NaiveDataParallel,
    bucketed_data_parallel,
    share_of,
)
from minidist.parallel.expert import ExpertBalance, ExpertParallel, expert_process_groups
from minidist.parallel.loosened.delayed import DelayedDataParallel
from minidist.parallel.loosened.local import LocalSGD
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.sequence import sequence_plan
from minidist.parallel.tensor import TensorParallel, tensor_plan
from minidist.parallel.tools.messages import all_gather_object, flattened, global_max, global_sum, views_of
from minidist.parallel.tools.regions import Region
from minidist.parallel.tools.schedule_check import check_schedule
from minidist.parallel.tools.schedules import Action, schedule
from minidist.parallel.zero import Zero
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.rules import linear


def parallelize(model: GPT, mesh: DeviceMesh, layout: Layout, config: TrainConfig) -> "ParallelModel":
    """Split a model, and the work of a step, over the ranks of a mesh. All its ranks call this together.

    Args:
        model: the full model with its initial weights; changed in place into this rank's share.
        mesh: device mesh with the dimensions "pp", "dp", "cp" and "tp", of the layout's sizes.
        layout: the axes, and how each of them works.
        config: the run's settings, already checked against the layout (``config.check``).
    """
    dtype = np.dtype(config.reduce_dtype)
    axes: list[Axis] = []
    if layout.sync == "local":
        axes.append(local_axis(mesh, layout, config))
    if layout.tp > 1:
        plan = tensor_plan(bool(layout.sp), dtype) | (sequence_plan(dtype) if layout.sp else {})
        axes.append(TensorParallel(mesh.get_group("tp"), plan))
    if layout.cp > 1:
        axes.append(ContextParallel(mesh.get_group("cp"), layout.cp_kind))
    pipeline = None
    if layout.pp > 1:
        schedule_of = lru_cache(partial(plan_schedule, layout))  # per run: overrides may change
        shape_of = partial(config.activations, layout)
        axes.append(pipeline := Pipeline(mesh.get_group("pp"), config.stages(layout), shape_of, schedule_of))
    # Gradients are summed over the ranks with other samples (dp) and with other tokens of the same samples (cp).
    data_group = mesh.get_group("dp") if layout.cp == 1 else mesh.flatten(("dp", "cp"), "dp_cp").get_group("dp_cp")
    if layout.sync == "local":  # the ranks within a worker
        data_group = mesh.get_group("cp")
    if layout.ep > 1:
        axes += expert_axes(mesh, data_group, layout, config)
    else:
        axes.append(data_axis(data_group, layout, config))
    if model.balance is not None:
        axes.append(ExpertBalance(model.balance, [data_group] + [mesh.get_group("pp")] * (layout.pp > 1)))
    deal = partial(deal_micro_batches, mesh.get_local_rank("dp"), layout.dp)
    targets = config.micro_batch * config.context if config.packing != RANDOM else 0
    parallel = ParallelModel(model, mesh.group, axes, deal, config.micro_batches, pipeline, targets)
    recompute_blocks(model, layout.recompute)
    return parallel


def deal_micro_batches(rank: int, ranks: int, count: int) -> tuple[range, int]:
    """Return the indices of a data-parallel rank's micro-batches, and the largest count on any rank (rank 0's)."""
    return share_of(rank, ranks, count), len(share_of(0, ranks, count))


def plan_schedule(layout: Layout, micro_batches: int) -> list[list[Action]]:
    """Return the pipeline's schedule, a list of actions per rank, after checking it."""
    actions = schedule(layout.schedule, layout.pp, micro_batches, layout.virtual)
    check_schedule(actions, micro_batches)
    return actions


def expert_axes(mesh: DeviceMesh, data_group: ProcessGroup, layout: Layout, config: TrainConfig) -> list[Axis]:
    """Return the axes of expert parallelism, among them two data axes: one for dense parameters, one for experts."""
    exchanging, same_experts = expert_process_groups(mesh.mesh, layout.ep, mesh.group)
    dense = data_axis(data_group, layout, config, lambda parameter: parameter.expert_axis is None)
    experts = data_axis(same_experts, layout, config, lambda parameter: parameter.expert_axis is not None)
    experts.splits_loss = experts.splits_batch = False  # the dense axis sums over all of these ranks
    sums = Axis(data_group, data_group)  # for sums over all parameters: last, because both data axes may shard
    return [ExpertParallel(exchanging), dense, experts, sums]


def local_axis(mesh: DeviceMesh, layout: Layout, config: TrainConfig) -> Axis:
    """Return the axis of local SGD, which joins the workers every few steps. All other axes lie within a worker."""
    group = mesh.get_group("dp")
    mine = len(share_of(group.rank, group.size, config.micro_batches))
    return LocalSGD(
        group, mine, config.micro_batches, config.steps, linear(config), layout.local_steps, layout.fragments,
        layout.outer_lr, layout.outer_momentum, layout.algorithm, np.dtype(config.reduce_dtype),
    )  # fmt: skip


def data_axis(group: ProcessGroup, layout: Layout, config: TrainConfig, holds: Holds = everything) -> Axis:
    """Return the axis that splits the batch over a group: plain data parallelism, or ZeRO, which also shards memory."""
    if not layout.zero:
        return DataParallel(group, partial(gradient_reducer, group, layout, config), holds)
    settings: dict = {"algorithm": layout.algorithm, "reduce_dtype": np.dtype(config.reduce_dtype)}
    if layout.zero == 3:
        settings |= {"reshard_after_forward": bool(layout.reshard_after_forward), "prefetch": bool(layout.prefetch)}
    once = layout.grad_sync == "step"
    return Zero(group, layout.zero, layout.shard or group.size, settings, layout.pp > 1, once, holds)


def gradient_reducer(
    group: ProcessGroup, layout: Layout, config: TrainConfig, parameters: Sequence[Parameter]
) -> NaiveDataParallel | DelayedDataParallel:
    """Return the reducer that sums the gradients of these parameters over a group's ranks, as the layout says."""
    arguments = parameters, group, layout.algorithm, np.dtype(config.reduce_dtype)
    if layout.sync == "delayed":
        return DelayedDataParallel(*arguments, config.steps)
    if layout.sync == "naive":
        return NaiveDataParallel(*arguments)
    overlap = layout.sync == "overlapped" and group.size > 1  # one rank has nothing to overlap
    if not layout.compress:
        return bucketed_data_parallel(*arguments, layout.bucket_mb, overlap)
    # without overrides: one would sum its buckets itself, and never call the hook
    hook = Compressor(layout.compress, bool(layout.error_feedback), config.seed)
    return BucketedDataParallel(*arguments, layout.bucket_mb, overlap, hook)


class ParallelModel:
    """One rank's share of a model and of the work of a step; ``train_step`` calls its methods.

    Args:
        model: the full model; the axes change it in place.
        group: all ranks of the run, which call this together.
        axes: the axes, in the order in which they cut the model.
        deal: function from the number of micro-batches in a step to the indices of this rank's, and the largest count
            on any rank.
        global_micro_batches: number of micro-batches in a step, over all ranks.
        pipeline: the axis that runs this rank's micro-batches; None to run them one after the other.
        targets: number of targets in a micro-batch, B T, if some may be ignored; 0 if all count.

    Attributes:
        micro_batches: indices of this rank's micro-batches; None for an empty one (``Axis.pads_micro_batches``).
        divisor: divisor of the step's sums over micro-batches: the number of micro-batches or, if targets may be
            ignored, the number of targets that count divided by B T.
        loss_sum: sum of the losses of the last step's micro-batches, over the ranks that step together.
        local: the part of the model that this rank holds.
        trained: the parameters that the optimizer updates on this rank.
    """

    def __init__(
        self, model: GPT, group: ProcessGroup, axes: Sequence[Axis], deal: Callable[[int], tuple],
        global_micro_batches: int, pipeline: Pipeline | None = None, targets: int = 0,
    ) -> None:  # fmt: skip
        self.model, self.group, self.axes = model, group, list(axes)
        self.shapes = {name: parameter.shape for name, parameter in model.named_parameters()}  # of the full arrays
        self.dtype = model.parameters()[0].data.dtype  # float64 where runs are compared with PyTorch
        self.deal, self.global_micro_batches = deal, global_micro_batches
        self.pipeline, self.targets = pipeline, targets
        self.take(*deal(global_micro_batches))
        self.loss_sum = 0.0
        self.local: Module = model
        for axis in self.axes:
            self.local = axis.apply(self.local)
        self.trained: list[Parameter] = self.local.parameters()
        for axis in self.axes:
            self.trained = axis.trained(self.trained)
        self.shard_groups = list(filter(None, (axis.shard_group for axis in reversed(self.axes))))
        everyone = all_gather_object(list(self._after_each_axis()), group)
        self.regions_of = dict(zip(group.ranks, everyone, strict=True))  # rank -> its regions after each axis
        self.owned = {parameter.name for parameter in self.trained if self._is_first_with(parameter.name)}

    def set_micro_batches(self, count: int) -> None:
        """Set the number of micro-batches in a step, over all ranks. All ranks call this between two steps."""
        if count != self.global_micro_batches:
            self.global_micro_batches = count
            self.take(*self.deal(count))

    def take(self, micro_batches: Sequence[int], most: int) -> None:
        """Give this rank these micro-batches from the next step on; ``most`` is the largest count on any rank.

        All ranks call this between two steps; together they have each micro-batch of a step once. It changes no bit of
        the run: see train/resilience/rebalance.py.
        """
        empty = most - len(micro_batches) if any(axis.pads_micro_batches for axis in self.axes) else 0
        self.micro_batches: list[int | None] = [*micro_batches, *[None] * empty]
        self.divisor: float = self.averaged_micro_batches
        for axis in self.axes:
            axis.most_micro_batches = most

    # The phases of a step

    def zero_grad(self) -> None:
        for axis in self.axes:
            axis.zero_grad()

    def count_targets(self, batch: Sequence[MicroBatch]) -> None:
        """Set the divisor of the step's sums. All ranks call this together, before the first forward pass.

        A micro-batch's loss is the sum over its targets that count, divided by its B T places (nn/loss.py). With N such
        targets in the global batch, the mean over them is the sum over the micro-batches, divided by N / (B T). Counts
        are integers, so every layout finds the same N. (If N is 0, so are the loss and its gradients.)
        """
        if self.targets:
            counts = np.zeros(1, np.int64)
            for one in batch:  # only in the sequence chunks that this rank computes
                for chunk in self.model.chunks.slices(one.targets.shape[1], one.documents):
                    counts += int((one.targets[:, chunk] != IGNORED).sum())
            for axis in reversed(self.axes):
                if axis.splits_batch:
                    all_reduce(counts, ReduceOp.SUM, axis.group)
            self.divisor = max(1, int(counts[0])) / self.targets

    def forward_backward(self, batch: Sequence[MicroBatch], scale: float) -> float:
        """Run this rank's micro-batches: add their gradients, times ``scale``; return the sum of losses known here.

        Complete gradients may be sent during the last backward pass; all other passes run under ``no_sync``.
        """
        if self.model.balance is not None:
            # layers with experts add losses of their own: over all places, averaged over the micro-batches
            self.model.balance.loss_scale = scale * (self.divisor / self.global_micro_batches)
        if self.pipeline is not None:
            return self.pipeline.run(batch, scale, self.no_sync)
        total = xp.zeros(())
        for number, micro_batch in enumerate(batch, 1):
            with nullcontext() if number == len(batch) else self.no_sync():
                total += forward_backward(self.local, micro_batch, scale)
        return float(total)

    @contextmanager
    def no_sync(self):
        with ExitStack() as stack:
            for axis in self.axes:
                stack.enter_context(axis.no_sync())
            yield

    @trace.traced("sync gradients", "wait")
    def sync_gradients(self) -> None:
        for axis in self.axes:
            axis.sync_gradients()

    @trace.traced("sync parameters", "wait")
    def sync_params(self) -> None:
        for axis in self.axes:
            axis.sync_params()

    def average_loss(self, total: float) -> float:
        """Sum the losses over the ranks that each know a part, and return the mean over the step's targets.

        Where ranks step apart, the mean covers this rank and the ranks that step with it.
        """
        sums = np.array([total], np.float64)
        for axis in reversed(self.axes):
            if axis.splits_loss:
                all_reduce(sums, ReduceOp.SUM, axis.group)
        self.loss_sum = float(sums[0])
        return self.loss_sum / self.divisor

    def join_losses(self, losses: list[float], sums: Sequence[float]) -> list[float]:
        """Return each step's mean loss over the global batch, the same on all ranks. Called after the last step.

        Args:
            losses: loss of each step, as ``average_loss`` returned it.
            sums: ``loss_sum`` after each step.
        """
        for axis in self.axes:
            if axis.steps_apart:
                joined = np.array(sums, np.float64)
                all_reduce(joined, ReduceOp.SUM, axis.group)
                return [float(total / self.global_micro_batches) for total in joined]
        return losses

    @property
    def averaged_micro_batches(self) -> int:
        """Number of micro-batches summed into the gradients that this rank's optimizer gets."""
        return len(self.micro_batches) if self.steps_apart else self.global_micro_batches

    @property
    def steps_apart(self) -> bool:
        """Whether this rank takes steps without waiting for all others."""
        return any(axis.steps_apart for axis in self.axes)

    # Which rank holds what

    def owns(self, parameter: Parameter) -> bool:
        """Return whether this rank counts a parameter in sums over the parameters of all ranks.

        Every shard counts; of replicas only the first does. (Megatron-LM: ``param_is_not_tensor_parallel_duplicate``.)
        """
        return parameter.name in self.owned

    def _is_first_with(self, name: str) -> bool:
        """Return whether no earlier rank of any shard group holds the same part of this parameter."""
        for i, axis in enumerate(self.axes):
            if axis.shard_group is not None:
                parts = [self.regions_of[rank][i].get(name) for rank in axis.shard_group.ranks]
                if parts.index(parts[axis.shard_group.rank]) < axis.shard_group.rank:
                    return False
        return True

    def global_max(self, value):
        """Return the maximum over all ranks that hold different parameters, of a number or of each array element."""
        for group in self.shard_groups:
            value = global_max(value, group)
        return value

    def global_sum(self, value):
        """Return the sum over all ranks that hold different parameters, of an integer or of each array element."""
        for group in self.shard_groups:
            value = global_sum(value, group)
        return value

    def full_state(self, arrays: dict) -> dict:
        """Gather the full arrays, by parameter name, from those that the ranks train. All ranks call this together.

        From the last axis to the first, a part that only some ranks of a group hold is broadcast by the first of them.
        A rank keeps its own copy of a part, even a corrupted one. Arrays that differ between ranks that step apart are
        stacked: (ranks, *shape).
        """
        dtype = next((array.dtype for array in arrays.values()), self.dtype)
        full = {name: xp.full(shape, xp.nan, dtype) for name, shape in self.shapes.items()}
        mine = self.regions()
        for name, array in arrays.items():
            mine[name].put(array, full[name])
        for i, axis in reversed(list(enumerate(self.axes))):
            if (group := axis.group if axis.steps_apart else axis.shard_group) is None:
                continue
            everyone = [self.regions_of[rank][i] for rank in group.ranks]
            copies = Counter(part for regions in everyone for part in regions.items())
            for source, regions in enumerate(everyone):
                parts = [part for part in regions.items() if 0 < copies[part] < group.size]
                for part in parts:
                    del copies[part]  # another rank that holds it need not send it again
                if parts:
                    flat = flattened([region.take(full[name]) for name, region in parts])
                    broadcast(flat, source, group)
                    for (name, region), piece in zip(parts, views_of(flat, [(r.size,) for _, r in parts]), strict=True):
                        if everyone[group.rank].get(name) != region:
                            region.put(piece, full[name])
        for group in [axis.group for axis in self.axes if axis.steps_apart]:
            full = {name: stacked(array, group) for name, array in full.items()}
        return full

    def regions(self, trained: bool = True) -> dict[str, Region]:
        """Return where in the full arrays the parts are that this rank's optimizer updates, by parameter name.

        If not ``trained``: the parts that the model computes with, as far as they are here between two steps.
        """
        return list(self._after_each_axis(trained))[-1]

    def _after_each_axis(self, trained: bool = True) -> Iterator[dict[str, Region]]:
        """Yield the regions that are left after each axis."""
        regions = {name: Region.full(shape) for name, shape in self.shapes.items()}
        for axis in self.axes:
            regions = axis.regions(regions, trained)
            yield regions


def stacked(array, group: ProcessGroup):
    """Return an array as it is if all ranks of a group hold the same bits; otherwise theirs, as (ranks, *shape)."""
    arrays = xp.empty((group.size, *array.shape), array.dtype)
    all_gather_into_tensor(arrays, array, group)
    raw = arrays.view(xp.uint8)
    return array if (raw == raw[0]).all() else arrays


def forward_backward(model: Module, micro_batch: MicroBatch, scale: float = 1.0):
    """Run one micro-batch, add its gradients, times ``scale``, to those so far, and return its loss.

    The loss is an array, (), on the device: a number would make the host wait for the GPU after each micro-batch.
    """
    with trace.span(f"forward {micro_batch.number}"):
        loss = model(*micro_batch)
    with trace.span(f"backward {micro_batch.number}"):
        loss.backward(xp.full((), scale, loss.dtype))
    return loss.data
