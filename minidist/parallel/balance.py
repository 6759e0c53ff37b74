"""The load of the experts over all ranks: what each rank's routers must know of the other ranks' tokens, once a step.

Every rank counts the tokens of its own micro-batches, chunks and layers. The counts are added as integers over all of
them, so every rank moves the routers' biases alike, and the next step begins with the same ones everywhere. Counts of
one micro-batch, or of one rank, would be another objective; counts in bfloat16 were wrong by hundreds (Megatron-LM's
pull request 7081: 40,840 became 41,216, and the step of the bias changed its sign).
"""

from collections.abc import Sequence

from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.nn.moe.balance import Balance
from minidist.parallel.axis import Axis


class ExpertBalance(Axis):
    """Adds up what the routers count. It splits nothing: every rank has all counts and all biases.

    Args:
        balance: of the model.
        groups: the sums go over the ranks of the first, then of the second, and so on: those with other tokens, and
            those with other layers.
    """

    def __init__(self, balance: Balance, groups: Sequence[ProcessGroup]) -> None:
        super().__init__(groups[0])
        self.balance, self.groups = balance, groups

    def zero_grad(self) -> None:
        self.balance.begin()

    def sync_gradients(self) -> None:
        for group in self.groups:
            all_reduce(self.balance.tally, ReduceOp.SUM, group)

    def sync_params(self) -> None:
        self.balance.end()
