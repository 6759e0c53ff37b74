"""What tensor and sequence parallelism do in a mixture of experts.

The experts' hidden units are divided by heads, as those of a dense MLP are. The router and the permutation are computed
on every tensor-parallel rank alike. So f and g are around the experts, not around the whole layer: they carry k rows
for each token, k times what a dense MLP's carry. (That is why real systems give experts fewer tensor-parallel ranks
than attention, or one: Megatron-LM's ``--expert-tensor-parallel-size``.)

With sequence parallelism the tokens are gathered before the router and split again behind the mixture. Between the two
all ranks do the same, so each keeps its own part of the gradient, and nothing is added (Megatron-LM:
``tensor_parallel_output_grad=False``).
"""

from minidist.backend import xp
from minidist.comm.group import ProcessGroup
from minidist.nn import functional
from minidist.nn.moe.experts import Experts
from minidist.nn.moe.layer import MoE
from minidist.nn.tensor import Tensor
from minidist.parallel.tools.mappings import (
    SEQUENCE,
    copy_to_group,
    gather_copies_in_group,
    reduce_from_group,
    scatter_to_group,
)


class TensorParallelExperts(Experts):
    """Experts with the hidden units of some heads: rows (R, C) to rows (R, C), summed over the ranks.

    Args:
        experts: of one process; its weights have only this rank's heads already.
        group: the tensor-parallel ranks.
        reduce_dtype: in which the ranks' outputs, and gradients of the rows, are summed.
    """

    def __init__(self, experts: Experts, group: ProcessGroup, reduce_dtype=xp.float64) -> None:
        vars(self).update(vars(experts))
        self.group, self.reduce_dtype = group, reduce_dtype

    def enter(self, x: Tensor) -> Tensor:
        return copy_to_group(x, self.group, self.reduce_dtype)

    def leave(self, y: Tensor) -> Tensor:
        total = functional.reduce_from_heads(y, self.reduce_dtype)  # (R, C) over the heads here, not rounded yet
        return reduce_from_group(total, self.group, self.reduce_dtype, y.dtype)


class SequenceParallelMoE(MoE):
    """A mixture between regions in which the tokens are split: (B, T/N, C) -> (B, T/N, C).

    Args:
        moe: whose parts this one takes over.
        group: the tensor-parallel ranks, N of them.
    """

    def __init__(self, moe: MoE, group: ProcessGroup) -> None:
        vars(self).update(vars(moe))
        self.group = group

    def enter(self, x: Tensor) -> Tensor:
        return gather_copies_in_group(x, self.group, SEQUENCE)  # (B, T, C)

    def leave(self, y: Tensor) -> Tensor:
        return scatter_to_group(y, self.group, SEQUENCE)  # (B, T/N, C)
