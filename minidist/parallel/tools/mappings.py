"""Collectives that differentiate, as conjugate pairs: what one does in forward, the other does in backward.

If forward copies a tensor to every rank, the ranks' gradients of it add up; if forward adds the ranks' tensors up,
each gets the whole gradient back. So every collective's backward is another collective:

    forward           backward          here                     Megatron-LM
    copy              all-reduce        copy_to_group            f: copy_to_tensor_model_parallel_region
    all-reduce        copy              reduce_from_group        g: reduce_from_tensor_model_parallel_region
    split             all-gather        scatter_to_group         scatter_to_tensor_model_parallel_region
    all-gather        split             gather_from_group        gather_from_tensor_model_parallel_region
    all-gather        reduce-scatter    all_gather_in_group      gather_from_sequence_parallel_region
    reduce-scatter    all-gather        reduce_scatter_in_group  reduce_scatter_to_sequence_parallel_region

(Shoeybi et al., "Megatron-LM", 2019, and Korthikanti et al., "Reducing Activation Recomputation in Large Transformer
Models", 2022.) Gathering and splitting are along one axis. Which partner an all-gather has depends on what follows: if
all ranks compute the same from the gathered tensor, their gradients are equal and each keeps its part (split); if each
computes something else, the gradients add up (reduce-scatter).

Sums are taken in ``reduce_dtype``, float64 by default, and rounded once: their bits then depend neither on the ranks'
order nor on the algorithm. So a gradient that is to be summed must not be rounded on its way here (``ctx.grad_dtype``),
and what is summed in forward may come as an unrounded float64 partial sum, with ``dtype`` the one to round to.
A collective in place would overwrite what autograd has saved, so every mapping works on a copy.
"""

from collections.abc import Callable

from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_gather_into_tensor, all_reduce, reduce_scatter_tensor
from minidist.comm.group import ProcessGroup
from minidist.nn.layers import Parameter
from minidist.nn.precision.policy import POLICIES, Policy, current
from minidist.nn.rounding import rounded
from minidist.nn.tensor import Context, Function, Tensor
from minidist.overrides import overridable


@overridable
def copy_to_group(x: Tensor, group: ProcessGroup, reduce_dtype=xp.float64) -> Tensor:
    """The same tensor, on its way into what each rank computes differently; its gradients are summed over the ranks."""
    return Mapping.apply(x, keep, lambda gradient: sum_over(gradient, group, reduce_dtype), None, reduce_dtype)


@overridable
def reduce_from_group(x: Tensor, group: ProcessGroup, reduce_dtype=xp.float64, dtype=None) -> Tensor:
    """The sum of all ranks' tensors, of the same shape on each, rounded to ``dtype`` (None: that of ``x``)."""
    return Mapping.apply(x, lambda array: sum_over(array, group, reduce_dtype), keep, dtype, None)


def scatter_to_group(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """This rank's part of a tensor that all ranks have: ``x.shape[axis]`` is divided by the ranks."""

    def there(array):
        return split(array, group, axis)

    policy = current()
    return Mapping.apply(x, there, lambda gradient: join(gradient, group, axis, policy), None, None)


def gather_from_group(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """All ranks' parts joined along an axis, for all ranks to compute the same from it."""

    policy = current()

    def there(array):
        return join(array, group, axis, policy)

    return Mapping.apply(x, there, lambda gradient: split(gradient, group, axis), None, None)


@overridable
def all_gather_in_group(x: Tensor, group: ProcessGroup, axis: int, reduce_dtype=xp.float64) -> Tensor:
    """All ranks' parts joined along an axis, for each rank to compute something else from it."""

    def back(gradient):
        return sum_and_split(gradient, group, axis, reduce_dtype)

    policy = current()
    return Mapping.apply(x, lambda array: join(array, group, axis, policy), back, None, reduce_dtype)


@overridable
def reduce_scatter_in_group(x: Tensor, group: ProcessGroup, axis: int, reduce_dtype=xp.float64, dtype=None) -> Tensor:
    """This rank's part, along an axis, of the sum of all ranks' tensors, rounded to ``dtype`` (None: that of ``x``)."""

    def there(array):
        return sum_and_split(array, group, axis, reduce_dtype)

    policy = current()
    return Mapping.apply(x, there, lambda gradient: join(gradient, group, axis, policy), dtype, None)


def copy_parameter_to_group(parameter: Parameter, group: ProcessGroup, reduce_dtype=xp.float64) -> Tensor:
    """A parameter that all ranks have and use on other tokens each: its gradient is the sum of theirs.

    As ``copy_to_group``, but with a copy of the array, so that saving it for backward does not keep the parameter's own
    from being given up meanwhile (ZeRO's stage 3 does). Megatron-LM instead marks such parameters
    (``sequence_parallel``) and sums their gradients when the whole batch is through (``finalize_model_grads``).
    """
    return Mapping.apply(
        parameter, xp.copy, lambda gradient: sum_over(gradient, group, reduce_dtype), None, reduce_dtype
    )


class Mapping(Function):
    """One movement forward, its conjugate backward."""

    @staticmethod
    def forward(ctx: Context, x, there: Callable, back: Callable, dtype, grad_dtype):
        ctx.back, ctx.grad_dtype = back, grad_dtype
        return rounded(there(x), dtype or x.dtype)

    @staticmethod
    def backward(ctx: Context, gradient):
        return ctx.back(gradient), None, None, None, None


# The movements, on arrays. None changes the array that it is given. Sums come unrounded.


def keep(array):
    """The array as it is."""
    return array


def sum_over(array, group: ProcessGroup, dtype=xp.float64):
    """The sum over the ranks, taken in ``dtype``."""
    total = array.astype(dtype, order="C")  # a copy, also where the dtype is the same: autograd may have saved that one
    all_reduce(total, ReduceOp.SUM, group)
    return total


def split(array, group: ProcessGroup, axis: int):
    """This rank's part along an axis, as a C-ordered copy: reductions over other orders have other bits."""
    return xp.ascontiguousarray(_parts(array, group, axis)[group.rank])


def join(array, group: ProcessGroup, axis: int, policy: Policy = POLICIES["fp32"]):
    """All ranks' arrays, of one shape, one behind the other along an axis; sent as the policy says."""
    mine = policy.outgoing(array)
    stacked = xp.empty((group.size, *array.shape), mine.dtype)  # (ranks, ...)
    all_gather_into_tensor(stacked, mine, group)
    return xp.concatenate(list(policy.incoming(stacked)), axis)


def sum_and_split(array, group: ProcessGroup, axis: int, dtype=xp.float64):
    """This rank's part, along an axis, of the sum over the ranks, taken in ``dtype``."""
    stacked = xp.stack(_parts(array.astype(dtype, order="C", copy=False), group, axis))  # (ranks, ...)
    part = xp.empty(stacked.shape[1:], dtype)
    reduce_scatter_tensor(part, stacked, ReduceOp.SUM, group)
    return part


def _parts(array, group: ProcessGroup, axis: int) -> list:
    length = array.shape[axis]
    if length % group.size:
        raise ValueError(
            f"axis {axis} of shape {array.shape} has {length} entries, which {group.size} ranks do not divide"
        )
    return xp.split(array, group.size, axis)
