"""Differentiable collectives, in conjugate pairs: each collective of a pair is the other's backward.

If forward copies a tensor to every rank, the ranks' gradients of it add up; if forward adds the ranks' tensors up,
each rank gets the full gradient back. So the backward of every collective is another collective:

    forward           backward          here                     Megatron-LM
    copy              all-reduce        copy_to_group            f: copy_to_tensor_model_parallel_region
    all-reduce        copy              reduce_from_group        g: reduce_from_tensor_model_parallel_region
    split             all-gather        scatter_to_group         scatter_to_sequence_parallel_region
    all-gather        reduce-scatter    all_gather_in_group      gather_from_sequence_parallel_region
    all-gather        split             gather_copies_in_group   the same, tensor_parallel_output_grad=False
    reduce-scatter    all-gather        reduce_scatter_in_group  reduce_scatter_to_sequence_parallel_region
    all-to-all        all-to-all        all_to_all_in_group      all_to_all_sp2hp, all_to_all_hp2sp

(Shoeybi et al., "Megatron-LM", 2019, and Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models", 2022.) Gathering and splitting are along one axis of the array.

Sums are taken in ``reduce_dtype``, float64 by default, and rounded once: their bits then depend neither on the ranks'
order nor on the algorithm. So a gradient that will be summed must not be rounded on its way here (``ctx.grad_dtype``),
and forward may sum unrounded float64 partial sums, which it then rounds to ``dtype``.
A collective in place would overwrite what autograd has saved, so every mapping works on a copy.
"""

from collections.abc import Callable
from functools import partial

from minidist.backend import xp
from minidist.comm.collectives import (
    ReduceOp,
    all_gather_into_tensor,
    all_reduce,
    all_to_all_single,
    reduce_scatter_tensor,
)
from minidist.comm.group import ProcessGroup
from minidist.nn.kernels import rounded
from minidist.nn.layers import Parameter
from minidist.nn.precision.policy import POLICIES, Policy, current
from minidist.nn.tensor import Context, Function, Tensor
from minidist.overrides import overridable

SEQUENCE = 1  # the axis of the tokens in activations (B, T, C)


class Mapping(Function):
    """Collective in forward, and its conjugate in backward.

    A GPU moves messages while it computes other things, so this is no kernel.

    Args:
        there, back: functions of the array in forward, and of the gradient in backward; None for the identity.
        dtype: dtype that the output is rounded to; None for that of ``x``.
        grad_dtype: dtype in which the gradient arrives; None for that of the output.
    """

    kernel = False

    @staticmethod
    def forward(
        ctx: Context, x, there: Callable | None = None, back: Callable | None = None, dtype=None, grad_dtype=None
    ):
        ctx.back, ctx.grad_dtype = back, grad_dtype
        return x if there is None else rounded(there(x), dtype or x.dtype)

    @staticmethod
    def backward(ctx: Context, gradient):
        return gradient if ctx.back is None else ctx.back(gradient)


@overridable
def copy_to_group(x: Tensor, group: ProcessGroup, reduce_dtype=xp.float64) -> Tensor:
    """Apply f: identity in forward, all-reduce in backward."""
    return Mapping.apply(x, back=partial(sum_over, group=group, dtype=reduce_dtype), grad_dtype=reduce_dtype)


@overridable
def reduce_from_group(x: Tensor, group: ProcessGroup, reduce_dtype=xp.float64, dtype=None) -> Tensor:
    """Apply g: all-reduce in forward, rounded to ``dtype`` (None: that of ``x``), identity in backward."""
    return Mapping.apply(x, there=partial(sum_over, group=group, dtype=reduce_dtype), dtype=dtype)


def scatter_to_group(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """Return this rank's part of a tensor that all ranks have. The number of ranks divides ``x.shape[axis]``."""
    there, back = partial(split, group=group, axis=axis), partial(join, group=group, axis=axis, policy=current())
    return Mapping.apply(x, there=there, back=back)


@overridable
def all_gather_in_group(x: Tensor, group: ProcessGroup, axis: int, reduce_dtype=xp.float64) -> Tensor:
    """Join all ranks' parts along an axis, for ranks that compute different things from it: backward sums gradients."""
    there = partial(join, group=group, axis=axis, policy=current())
    back = partial(sum_and_split, group=group, axis=axis, dtype=reduce_dtype)
    return Mapping.apply(x, there=there, back=back, grad_dtype=reduce_dtype)


def gather_copies_in_group(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """Join all ranks' parts along an axis, for ranks that all compute the same from it: backward splits."""
    there, back = partial(join, group=group, axis=axis, policy=current()), partial(split, group=group, axis=axis)
    return Mapping.apply(x, there=there, back=back)


@overridable
def reduce_scatter_in_group(x: Tensor, group: ProcessGroup, axis: int, reduce_dtype=xp.float64, dtype=None) -> Tensor:
    """Return this rank's part, along an axis, of the sum over the ranks, rounded to ``dtype`` (None: that of ``x``)."""
    there = partial(sum_and_split, group=group, axis=axis, dtype=reduce_dtype)
    return Mapping.apply(x, there=there, back=partial(join, group=group, axis=axis, policy=current()), dtype=dtype)


def all_to_all_in_group(x: Tensor, group: ProcessGroup, split_axis: int, join_axis: int) -> Tensor:
    """Exchange parts, all to all: split along ``split_axis``, concatenate along ``join_axis``."""
    send = partial(exchange, group=group, policy=current())
    there = partial(send, split_axis=split_axis, join_axis=join_axis)
    return Mapping.apply(x, there=there, back=partial(send, split_axis=join_axis, join_axis=split_axis))


def copy_parameter_to_group(parameter: Parameter, group: ProcessGroup, reduce_dtype=xp.float64) -> Tensor:
    """Return a copy of a parameter that each rank uses on other tokens; the gradient is the sum over the ranks.

    Unlike ``copy_to_group`` this copies the array: saving the parameter's own for backward would keep it in memory
    after ZeRO's stage 3 has resharded it. Megatron-LM instead marks such parameters (``sequence_parallel``) and sums
    their gradients after the whole batch (``finalize_model_grads``).
    """
    back = partial(sum_over, group=group, dtype=reduce_dtype)
    return Mapping.apply(parameter, there=xp.copy, back=back, grad_dtype=reduce_dtype)


# The same movements on plain arrays. They leave their arguments as they are, and do not round sums.


def sum_over(array, group: ProcessGroup, dtype=xp.float64):
    """Return the sum over the ranks, taken in ``dtype``."""
    total = array.astype(dtype, order="C")  # always a copy: autograd may have saved the array
    all_reduce(total, ReduceOp.SUM, group)
    return total


def split(array, group: ProcessGroup, axis: int):
    """Return this rank's part along an axis, as a C-ordered copy.

    Reductions over other orders have other bits, and a view would keep the full array in memory.
    """
    return _parts(array, group, axis)[group.rank].copy()


def join(array, group: ProcessGroup, axis: int, policy: Policy = POLICIES["fp32"]):
    """Gather all ranks' arrays, of one shape, and concatenate them along an axis; the policy sets the wire format."""
    mine = policy.outgoing(array)
    stacked = xp.empty((group.size, *array.shape), mine.dtype)  # (ranks, ...)
    all_gather_into_tensor(stacked, mine, group)
    return xp.concatenate(list(policy.incoming(stacked)), axis)


def sum_and_split(array, group: ProcessGroup, axis: int, dtype=xp.float64):
    """Return this rank's part, along an axis, of the sum over the ranks, taken in ``dtype``."""
    stacked = xp.stack(_parts(array.astype(dtype, order="C", copy=False), group, axis))  # (ranks, ...)
    part = xp.empty(stacked.shape[1:], dtype)
    reduce_scatter_tensor(part, stacked, ReduceOp.SUM, group)
    return part


def exchange(array, group: ProcessGroup, split_axis: int, join_axis: int, policy: Policy = POLICIES["fp32"]):
    """Gather this rank's part of all ranks' arrays, along one axis, and join them along another.

    The policy sets the wire format.
    """
    outgoing = policy.outgoing(xp.stack(_parts(array, group, split_axis)))  # (ranks, ...)
    arrived = xp.empty_like(outgoing)
    all_to_all_single(arrived, outgoing, group=group)
    return xp.concatenate(list(policy.incoming(arrived)), join_axis)


def _parts(array, group: ProcessGroup, axis: int) -> list:
    length = array.shape[axis]
    if length % group.size:
        raise ValueError(
            f"axis {axis} of shape {array.shape} has {length} entries, which cannot be split evenly over "
            f"{group.size} ranks"
        )
    return xp.split(array, group.size, axis)
