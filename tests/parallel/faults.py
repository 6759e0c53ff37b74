"""Bugs to plant into the ranks of a run. Many are those of real systems, with the numbers of their issues.

A fault is a function that takes the place of one of the library's: it gets that one first, then its arguments.
``train_with(name, ...)`` trains with it; test_faults.py shows that each one shows.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from inspect import getattr_static
from unittest import mock

import numpy as np

from minidist import flops, overrides
from minidist.nn import functional, gpt
from minidist.nn.layers import Dropout
from minidist.nn.moe import balance
from minidist.nn.precision import formats
from minidist.nn.precision.loss_scaling import GradScaler
from minidist.nn.precision.master_weights import MasterWeights
from minidist.nn.random import DropoutRNG
from minidist.parallel import balance as parallel_balance
from minidist.parallel import data, sequence, tensor, zero
from minidist.parallel.data import BucketedDataParallel, DataParallel
from minidist.parallel.expert import ExpertParallel
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tensor import RowParallelLinear, TensorParallel
from minidist.parallel.tools import mappings
from minidist.parallel.tools.passing_attention import ring_backward
from minidist.parallel.tools.units import Unit
from minidist.parallel.zero import Zero, ZeroStage1, ZeroStage2, ZeroStage3
from minidist.train import parallelize, step
from minidist.train.config import TrainConfig
from minidist.train.share import Share
from minidist.train.trainer import train_rank

BASE = TrainConfig(
    layers=3, heads=6, width=12, context=8, global_batch=4, micro_batch=1, steps=2, clip=0.05, warmup=1, lr=1e-2,
    dropout=0.2,
)  # fmt: skip
CHUNKS = {"sequence_chunks": 4}
EXPERTS = {
    "experts": 8, "expert_hidden": 12, "top_k": 4, "capacity": 1.0, "aux_loss": 0.02, "aux_scope": "global_batch",
    "bias_rate": 0.01,
}  # fmt: skip


@dataclass(frozen=True)
class Fault:
    """A bug, and where it must show.

    Attributes:
        patches: (owner, name, function or value), what takes the place of what.
        layouts: in each of which the run must differ from that of one process.
        changes: to BASE, so that it can show.
        stops: what the run ends with, instead of ending on other bits.
        train: trains a rank.
    """

    patches: list[tuple]
    layouts: tuple[str, ...]
    changes: dict
    stops: str
    train: Callable

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Within it this process has the bug."""
        with ExitStack() as stack:
            for owner, name, function in self.patches:
                stack.enter_context(planted(owner, name, function))
            yield


FAULTS: dict[str, Fault] = {}


def planted(owner, name: str, function):
    """Within it, ``function`` takes the place of an attribute, or of an override if ``owner`` is their dictionary."""
    if isinstance(owner, dict):
        return mock.patch.dict(owner, {name: function})
    if not callable(function):
        return mock.patch.object(owner, name, function)
    right = getattr(owner, name)

    def wrong(*arguments, **options):
        return function(right, *arguments, **options)

    static = isinstance(getattr_static(owner, name), staticmethod)
    return mock.patch.object(owner, name, staticmethod(wrong) if static else wrong)


def fault(owner, name: str, layouts: str, changes: dict | None = None, stops: str = "", train: Callable = train_rank):
    """Enter the function below as a fault, by its name."""

    def enter(function):
        owners = owner if isinstance(owner, tuple) else (owner,)
        patches = [(each, name, function) for each in owners]
        FAULTS[function.__name__] = Fault(patches, tuple(layouts.split()), changes or {}, stops, train)
        return function

    return enter


def train_with(name: str, *arguments):
    """``train_rank`` with a fault."""
    with FAULTS[name].planted():
        return FAULTS[name].train(*arguments)


# Data parallelism


@fault(data, "all_reduce", "dp=2")
def without_all_reduce(right, *_, **__):
    return mock.Mock()  # whose wait() does nothing


@fault(step, "average_gradients", "dp=2")
def sum_for_mean(right, parameters, count):
    right(parameters, count // 2)


@fault(parallelize, "share_of", "dp=2")
def same_batch_on_two_ranks(right, rank, size, count):
    return right(0 if rank == 1 else rank, size, count)


@fault(Share, "of", "dp=2")
def seed_by_rank(right, world, config, layout):
    """Every rank starts from weights of its own."""
    return right(world, replace(config, seed=config.seed + world.rank), layout)


@fault(BucketedDataParallel, "wait_for_gradients", "dp=2")
def a_gradient_arrives_damaged(right, self):
    right(self)
    self.buckets[-1].buffer[:1] = 0  # as if the start of its message had been lost


# Precisions and recomputation


@fault(formats, "bfloat16_bits", "dp=2", {"precision": "bf16"})
def rounding_cut_off(right, values):
    return (values.view(np.uint32) >> 16).astype(np.uint16)


@fault(MasterWeights, "sync_params", "dp=2", {"precision": "bf16"})
def no_master_weights(right, self):
    """The optimizer trains what the model computes with, so that small updates vanish."""
    right(self)
    for parameter, master in zip(self.parameters, self.masters, strict=True):
        master.data[...] = parameter.data


@fault(DropoutRNG, "generator", "recompute=full recompute=selective")
def dropout_redrawn(right, self, layer, place, *block):
    """Recomputed blocks get new random numbers."""
    return right(self, layer, place + (" again" if flops._phase == "recompute" else ""), *block)


@fault(GradScaler, "unscale", "dp=2", {"precision": "fp16"})
def scale_not_taken_out(right, *_):
    return False


def one_overflow(world, *arguments):
    """No fault: in the second step one gradient overflows, of a parameter that rank 0 alone holds in some layouts."""
    unscale, steps = GradScaler.unscale, []

    def overflowing(self, parameters, all_max):
        steps.append(None)
        if len(steps) == 2 and world.rank == 0:
            (bias,) = [parameter for parameter in parameters if parameter.name == "blocks.0.attention.qkv.bias"]
            bias.grad.reshape(-1)[0] = np.inf
        return unscale(self, parameters, all_max)

    with mock.patch.object(GradScaler, "unscale", overflowing):
        return train_rank(world, *arguments)


@fault(GradScaler, "unscale", "dp=2,zero=1 tp=2", {"precision": "fp16"}, "disagree|wait", one_overflow)
def overflow_not_agreed(right, self, parameters, _):
    """Every rank looks at its own gradients alone: one has gone on to the norm, the other to the next step."""
    return right(self, parameters)


# Tensor and sequence parallelism


@fault(tensor, "copy_to_group", "tp=2 zero=1,dp=2,tp=2")
def f_without_its_backward(right, x, *_):
    """What goes into the column layers: each rank keeps its own blocks' part of the gradient."""
    return x


@fault(RowParallelLinear, "forward", "tp=3")
def bias_on_every_rank(right, self, x):
    """A row layer's bias is added before the sum over the ranks, so N times."""
    total = functional.reduce_from_heads(functional.linear(x, self.weight), self.reduce_dtype)
    bias = mappings.copy_parameter_to_group(self.bias, self.group)
    return mappings.reduce_from_group(total + bias, self.group, self.reduce_dtype, x.dtype)


def fused(blocks):
    """From head blocks (H, C, 3 D) to [all queries | all keys | all values] (C, 3 C), cut into H equal parts again."""
    heads, width, outputs = blocks.shape
    apart = blocks.reshape(heads, width, 3, -1).transpose(1, 2, 0, 3)  # (C, 3, H, D)
    return np.ascontiguousarray(apart.reshape(width, heads, outputs).transpose(1, 0, 2))


def unfused(parts):
    heads, width, outputs = parts.shape
    apart = parts.transpose(1, 0, 2).reshape(width, 3, heads, -1)  # (C, 3, H, D)
    return np.ascontiguousarray(apart.transpose(2, 0, 1, 3).reshape(heads, width, outputs))


@fault(tensor, "column_parallel_linear", "tp=2")
def qkv_cut_contiguously(right, linear, group, **options):
    """The fused weight is cut into N equal parts: rank 0 has no values. Joined, they are the whole, as it was."""
    if linear.weight.name.endswith("qkv.weight"):
        linear.weight.data = fused(linear.weight.data)
    return right(linear, group, **options)


def joined(right, self, arrays):
    found = right(self, arrays)
    return {name: unfused(array) if name.endswith("qkv.weight") else array for name, array in found.items()}


FAULTS["qkv_cut_contiguously"].patches.append((TensorParallel, "full_state", joined))


@fault((tensor, sequence), "copy_parameter_to_group", "tp=2,sp=1 zero=3,dp=2,tp=2,sp=1")
def norms_not_summed(right, parameter, *_):
    """Under sequence parallelism each rank keeps its own tokens' part of the gradients of gains and biases."""
    return parameter


@fault(TensorParallel, "owner", "tp=2 dp=2,tp=2,sp=1")
def copies_counted_everywhere(right, self, name):
    """The global norm has what all ranks hold N times."""


@fault(tensor, "local_heads", "tp=3")
def heads_counted_from_zero(right, attention, group):
    """Every rank draws dropout for heads 0, 1, ..., whichever it has."""
    attention.heads = attention.heads[: len(attention.heads) // group.size]
    return attention


@fault(sequence.SequenceParallelDropout, "keep", "tp=2,sp=1")
def dropout_drawn_for_the_part(right, self, shape, dropout_rng):
    """Every rank drops of its tokens what one process would drop of the first ones."""
    return Dropout.keep(self, shape, dropout_rng)


@fault(functional, "reduce_from_heads", "tp=2")
def partial_sums_rounded(right, y, dtype=None):
    """Each rank rounds its blocks' sum to float32 before the sum over the ranks."""
    return right(y)


# Pipelines


@fault(Pipeline, "apply", "pp=3")
def stages_swapped(right, self, model):
    """The second and the third stage have each other's blocks."""
    model.blocks[1], model.blocks[2] = model.blocks[2], model.blocks[1]
    return right(self, model)


@fault(Pipeline, "receive", "pp=2 pp=2,schedule=zb-h1")
def a_gradient_dropped(right, self, stage, i, way):
    """What comes back of micro-batch 3 at the first border is taken for zero."""
    array = right(self, stage, i, way)
    return array * 0 if (stage, i, way) == (0, 3, "backward") else array


@fault(Pipeline, "sync_gradients", "pp=2 pp=2,dp=2,zero=1")
def tied_not_summed(right, self):
    pass


@fault(Pipeline, "owner", "pp=2")
def tied_counted_twice(right, self, name):
    pass


@fault(Pipeline, "tag", "pp=2")
def micro_batches_exchanged(right, self, stage, i, way):
    """Stage 1 takes micro-batch 2's activations for micro-batch 1's and the other way round: no shape tells."""
    mine = self.group.rank == 1 and way == "forward"
    return right(self, stage, {1: 2, 2: 1}.get(i, i) if mine else i, way)


FAULTS["loss_over_the_wrong_axis"] = Fault(  # over the stages alone, not the data-parallel ranks
    [(DataParallel, "splits_loss", False)], ("pp=2,dp=2",), {}, "", train_rank
)


# ZeRO


@fault(ZeroStage1, "sync_params", "zero=1,dp=2 zero=2,dp=3")
def stale_block(right, self):
    """Block 1 is not gathered again after the optimizer's step: its parameters are those of the first step."""
    units = self.units
    self.units = [unit for unit in units if unit is not self.blocks[1]]
    right(self)
    self.units = units


@fault(ZeroStage3, "start_gather", "zero=3,dp=2")
def stale_gather(right, self, unit):
    """Block 1 is gathered in the first step only; afterwards the parameters of that time are used."""
    kept = vars(self).setdefault("kept_gathers", {})
    if unit is self.blocks[1] and unit in kept:
        unit.full = kept[unit]
        unit.show(unit.full)
        return
    right(self, unit)
    if unit is self.blocks[1] and unit in self.gathering:
        kept[unit] = self.gathering[unit][0]


@fault(Unit, "parts", "zero=1,dp=3 zero=3,dp=2", stops="KeyError|not finite")
def bounds_off_by_one(right, self):
    """A rank's pieces begin one element too far to the right: a hole in a parameter is a NaN."""
    for parameter, place in right(self):
        if place.stop - place.start > 1:
            yield parameter, slice(place.start + 1, place.stop)


@fault(zero, "reduce_scatter_tensor", "zero=1,dp=2 zero=2,dp=2 zero=3,dp=4,shard=2")
def no_reduce_scatter(right, output, input, op, group, async_op, algorithm):
    """Each rank keeps its own gradients of its shard."""
    output[:] = input.reshape(group.size, -1)[group.rank]
    return right(np.empty(1), np.empty(group.size), op, group, async_op, algorithm=algorithm)


@fault(Zero, "hold_back", "dp=2,pp=2,zero=2", stops="NoneType")
def tied_gradient_sharded_too_early(right, self, parameters):
    """The root's gradients are scattered before both ends have added theirs: the pipeline finds none to sum."""


@fault(ZeroStage3, "wait_for_gradients", "dp=2,pp=2,zero=3,reshard_after_forward=0")
def old_parameters_kept(right, self):
    """Units stay unsharded over the step's end, so the next step computes with the parameters of this one."""
    ZeroStage2.wait_for_gradients(self)


# Context parallelism


@fault(gpt.Head, "mean_loss", "cp=2", CHUNKS)
def targets_shifted_after_sharding(right, self, x, targets):
    """The last token of each chunk gets the first one of the same chunk as its target."""
    return right(self, x, np.concatenate([targets[:, :-1], targets[:, :1]], 1))


@fault(gpt, "mean_over_chunks", "cp=2", CHUNKS)
def loss_over_local_tokens(right, means, count):
    return right(means, len(means))


@fault(overrides._overrides, "ring_backward", "cp=2", CHUNKS)
def stale_keys_in_backward(keys_values, group, visit):
    """Backward multiplies by this rank's own keys and values (diffusers #14265)."""
    return ring_backward.__wrapped__(keys_values, group, lambda rank, _: visit(rank, keys_values))


@fault(functional, "add_positions", "cp=2", CHUNKS)
def positions_from_zero(right, x, weight, first=0):
    """Every rank numbers its tokens from 0."""
    return right(x, weight, 0)


# Experts


@fault(DataParallel, "sync_gradients", "dp=2,ep=2", EXPERTS)
def experts_gradients_too_large(right, self):
    """Times the ranks that exchange tokens (torch #160285, DeepSpeed #5259, Megatron-LM #5956)."""
    right(self)
    for parameter in self.sums.parameters if self.group.axis == "edp" else []:
        parameter.grad *= 2


@fault(ExpertParallel, "owner", "dp=2,ep=2", EXPERTS)
def norm_without_experts(right, self, name):
    """Only rank 0 of the data-parallel ranks counts experts (Megatron-LM #5916)."""
    return 0


@fault(parallel_balance, "all_reduce", "dp=2,ep=2", EXPERTS)
def counts_of_one_rank(right, *_):
    pass


@fault(overrides._overrides, "combine_rows", "dp=2,ep=2", EXPERTS)
def combine_in_order_of_rows(rows, weights, places):
    """An unordered scatter-add (torchtitan #1974)."""
    total = np.zeros((len(weights), rows.shape[1]), rows.dtype)
    kept = np.argwhere(places >= 0)
    for token, choice in kept[np.argsort(places[places >= 0])]:
        total[token] += weights[token, choice] * rows[places[token, choice]]
    return total


@fault(mappings.GatherCopies, "backward", "tp=2,sp=1", EXPERTS)
def router_gradient_times_tp(right, ctx, gradient):
    """A sum over ranks that all have the whole gradient already."""
    return mappings.sum_and_split(gradient, ctx.group, ctx.axis), None, None


@fault(balance.AddBalanceLoss, "forward", "recompute=full", EXPERTS)
def counted_in_forward(right, ctx, scores, chosen, layer, shared):
    """Recomputation counts a second time (Automodel #3247)."""
    if flops._phase == "recompute":
        shared.tally[layer] += balance.tally_of(chosen, shared.config, len(scores))
    return right(ctx, scores, chosen, layer, shared)
