"""Bugs to plant into the ranks of a run. Many are those of real systems, with the numbers of their issues.

A fault is a function that takes the place of one of the library's: it gets that one first, then its arguments.
``train_with(name, ...)`` trains with it; test_faults.py shows that each one shows.
"""

from collections.abc import Callable
from contextlib import ExitStack
from inspect import getattr_static
from typing import NamedTuple
from unittest import mock

import numpy as np

from minidist import flops, overrides
from minidist.nn import functional, gpt
from minidist.nn.moe import balance
from minidist.nn.precision.underflow import GradScaler, MasterWeights
from minidist.nn.random import DropoutRNG
from minidist.parallel import sequence, tensor
from minidist.parallel.context import ring_backward
from minidist.parallel.data import BucketedDataParallel, DataParallel
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tools import mappings
from minidist.parallel.zero import Unit, Zero, ZeroStage1, ZeroStage2, ZeroStage3
from minidist.train.config import TrainConfig
from minidist.train.parallelize import ParallelModel
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


class Fault(NamedTuple):
    """A bug, and where it must show."""

    owners: tuple  # of what it takes the place of; a dictionary of overrides is one, too
    name: str  # there
    function: object
    layouts: tuple[str, ...]  # in each of which the run must differ from that of one process
    changes: dict  # to BASE, so that it can show
    stops: str  # what the run ends with, instead of ending on other bits
    train: Callable  # trains a rank


FAULTS: dict[str, Fault] = {}


def fault(owner, name: str, layouts: str, changes: dict | None = None, stops: str = "", train: Callable = train_rank):
    """Enter the function below as a fault, by its name."""

    def enter(function):
        owners = owner if isinstance(owner, tuple) else (owner,)
        FAULTS[function.__name__] = Fault(owners, name, function, tuple(layouts.split()), changes or {}, stops, train)
        return function

    return enter


def planted(owner, name: str, function):
    if isinstance(owner, dict):
        return mock.patch.dict(owner, {name: function})
    right = getattr(owner, name)

    def wrong(*arguments, **options):
        return function(right, *arguments, **options)

    static = isinstance(getattr_static(owner, name), staticmethod)
    return mock.patch.object(owner, name, staticmethod(wrong) if static else wrong)


def train_with(name: str, *arguments):
    """``train_rank`` with a fault."""
    with ExitStack() as stack:
        for owner in FAULTS[name].owners:
            stack.enter_context(planted(owner, FAULTS[name].name, FAULTS[name].function))
        return FAULTS[name].train(*arguments)


# Data parallelism


@fault(BucketedDataParallel, "wait_for_gradients", "dp=2")
def a_gradient_arrives_damaged(right, self):
    right(self)
    self.buckets[-1].buffer[:1] = 0  # as if the start of its message had been lost


# Precisions and recomputation


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
    """The column layers' input is passed on as it is: each rank keeps its own blocks' part of the gradient."""
    return x


@fault((tensor, sequence), "copy_parameter_to_group", "tp=2,sp=1 zero=3,dp=2,tp=2,sp=1")
def norms_not_summed(right, parameter, *_):
    """Under sequence parallelism each rank keeps its own tokens' part of the gradients of gains and biases."""
    return parameter


@fault(ParallelModel, "owns", "tp=2 dp=2,tp=2,sp=1")
def copies_counted_everywhere(right, self, parameter):
    """The global norm has what all ranks hold N times."""
    return True


@fault(functional, "reduce_from_heads", "tp=2")
def partial_sums_rounded(right, y, dtype=None):
    """Each rank rounds its blocks' sum to float32 before the sum over the ranks."""
    return right(y)


# Pipelines


@fault(Pipeline, "sync_gradients", "pp=2 pp=2,dp=2,zero=1")
def tied_not_summed(right, self):
    pass


@fault(Pipeline, "tag", "pp=2")
def micro_batches_exchanged(right, self, stage, i, way):
    """Stage 1 takes micro-batch 2's activations for micro-batch 1's and the other way round: no shape tells."""
    mine = self.group.rank == 1 and way == "forward"
    return right(self, stage, {1: 2, 2: 1}.get(i, i) if mine else i, way)


# ZeRO


@fault(ZeroStage1, "sync_params", "zero=1,dp=2 zero=2,dp=3")
def stale_block(right, self):
    """Block 1 is not gathered again after the optimizer's step: its parameters are those of the first step."""
    units = self.units
    self.units = [unit for unit in units if unit is not self.blocks[1]]
    right(self)
    self.units = units


@fault(Unit, "overlaps", "zero=1,dp=3 zero=3,dp=2")
def bounds_off_by_one(right, self):
    """A rank's pieces begin one element too far to the right: what nobody holds is a NaN in the full array."""
    for parameter, first, last in right(self):
        if last - first > 1:
            yield parameter, first + 1, last


@fault(Zero, "apply", "dp=2,pp=2,zero=2", stops="NoneType")
def tied_gradient_sharded_too_early(right, self, model):
    """The root's gradients are scattered before both ends have added theirs: the pipeline finds none to sum."""
    for parameter in model.parameters():
        parameter.summed_late = False
    return right(self, model)


@fault(ZeroStage3, "wait_for_gradients", "dp=2,pp=2,zero=3,reshard_after_forward=0")
def old_parameters_kept(right, self):
    """Units stay unsharded over the step's end, so the next step computes with the parameters of this one."""
    ZeroStage2.wait_for_gradients(self)


# Context parallelism


@fault(gpt.Head, "mean_loss", "cp=2", CHUNKS)
def targets_shifted_after_sharding(right, self, logits, targets):
    """The last token of each chunk gets the first one of the same chunk as its target."""
    return right(self, logits, np.concatenate([targets[:, :-1], targets[:, :1]], 1))


@fault(overrides._overrides, "ring_backward", "cp=2", CHUNKS)
def stale_keys_in_backward(keys_values, group, visit):
    """Backward multiplies by this rank's own keys and values (diffusers #14265)."""
    return ring_backward.__wrapped__(keys_values, group, lambda rank, _: visit(rank, keys_values))


# Experts


@fault(DataParallel, "sync_gradients", "dp=2,ep=2", EXPERTS)
def experts_gradients_too_large(right, self):
    """Times the ranks that exchange tokens (torch #160285, DeepSpeed #5259, Megatron-LM #5956)."""
    right(self)
    for parameter in self.reducer.parameters if self.group.name == "edp" else []:
        parameter.grad *= 2


@fault(ParallelModel, "owns", "dp=2,ep=2", EXPERTS)
def norm_without_experts(right, self, parameter):
    """Only rank 0 of the data-parallel ranks counts experts (Megatron-LM #5916)."""
    return self.group.rank == 0


@fault(overrides._overrides, "combine_rows", "dp=2,ep=2", EXPERTS)
def combine_in_order_of_rows(rows, weights, places):
    """An unordered scatter-add (torchtitan #1974)."""
    total = np.zeros((len(weights), rows.shape[1]), rows.dtype)
    kept = np.argwhere(places >= 0)
    for token, choice in kept[np.argsort(places[places >= 0])]:
        total[token] += weights[token, choice] * rows[places[token, choice]]
    return total


@fault(tensor, "gather_copies_in_group", "tp=2,sp=1", EXPERTS)
def router_gradient_times_tp(right, x, group, axis):
    """A sum over ranks that all have the whole gradient already."""
    return mappings.all_gather_in_group(x, group, axis)


@fault(balance.AddBalanceLoss, "forward", "recompute=full", EXPERTS)
def counted_in_forward(right, ctx, scores, chosen, layer, shared):
    """Recomputation counts a second time (Automodel #3247)."""
    if flops._phase == "recompute":
        shared.tally[layer] += balance.tally_of(chosen, shared.config, len(scores))
    return right(ctx, scores, chosen, layer, shared)
