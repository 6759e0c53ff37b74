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

Sums are taken in float64 and rounded once, so that their bits depend neither on the ranks' order nor on the algorithm.
A collective in place would overwrite what autograd has saved, so every mapping works on a copy.
"""

from collections.abc import Callable

from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_gather_into_tensor, all_reduce, reduce_scatter_tensor
from minidist.comm.group import ProcessGroup
from minidist.nn.tensor import Context, Function, Tensor

Movement = Callable  # (array, group, axis) -> array


def copy_to_group(x: Tensor, group: ProcessGroup) -> Tensor:
    """The same tensor, on its way into what each rank computes differently; its gradients are summed over the ranks."""
    return Mapping.apply(x, keep, sum_over, group, None)


def reduce_from_group(x: Tensor, group: ProcessGroup) -> Tensor:
    """The sum of all ranks' tensors, of the same shape on each."""
    return Mapping.apply(x, sum_over, keep, group, None)


def scatter_to_group(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """This rank's part of a tensor that all ranks have: ``x.shape[axis]`` is divided by the ranks."""
    return Mapping.apply(x, split, join, group, axis)


def gather_from_group(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """All ranks' parts joined along an axis, for all ranks to compute the same from it."""
    return Mapping.apply(x, join, split, group, axis)


def all_gather_in_group(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """All ranks' parts joined along an axis, for each rank to compute something else from it."""
    return Mapping.apply(x, join, sum_and_split, group, axis)


def reduce_scatter_in_group(x: Tensor, group: ProcessGroup, axis: int) -> Tensor:
    """This rank's part, along an axis, of the sum of all ranks' tensors."""
    return Mapping.apply(x, sum_and_split, join, group, axis)


class Mapping(Function):
    """One movement forward, its conjugate backward."""

    @staticmethod
    def forward(ctx: Context, x, there: Movement, back: Movement, group: ProcessGroup, axis: int | None):
        ctx.back, ctx.group, ctx.axis = back, group, axis
        return there(x, group, axis)

    @staticmethod
    def backward(ctx: Context, gradient):
        return ctx.back(gradient, ctx.group, ctx.axis), None, None, None, None


# The movements, on arrays. None changes the array that it is given.


def keep(array, group: ProcessGroup, axis: int | None = None):
    """The array as it is."""
    return array


def sum_over(array, group: ProcessGroup, axis: int | None = None):
    """The sum over the ranks, taken in float64 and rounded once to the array's dtype."""
    total = array.astype(xp.float64, order="C")  # a copy, also of a float64 array: autograd may have saved that one
    all_reduce(total, ReduceOp.SUM, group)
    return total.astype(array.dtype)


def split(array, group: ProcessGroup, axis: int):
    """This rank's part along an axis, as a C-ordered copy: reductions over other orders have other bits."""
    return xp.ascontiguousarray(_parts(array, group, axis)[group.rank])


def join(array, group: ProcessGroup, axis: int):
    """All ranks' arrays, of one shape, one behind the other along an axis."""
    stacked = xp.empty((group.size, *array.shape), array.dtype)  # (ranks, ...)
    all_gather_into_tensor(stacked, xp.ascontiguousarray(array), group)
    return xp.concatenate(list(stacked), axis)


def sum_and_split(array, group: ProcessGroup, axis: int):
    """This rank's part, along an axis, of the sum over the ranks, taken in float64 and rounded once."""
    stacked = xp.stack(_parts(array.astype(xp.float64), group, axis))  # (ranks, ...)
    part = xp.empty(stacked.shape[1:], xp.float64)
    reduce_scatter_tensor(part, stacked, ReduceOp.SUM, group)
    return part.astype(array.dtype)


def _parts(array, group: ProcessGroup, axis: int) -> list:
    length = array.shape[axis]
    if length % group.size:
        raise ValueError(
            f"axis {axis} of shape {array.shape} has {length} entries, which {group.size} ranks do not divide"
        )
    return xp.split(array, group.size, axis)
