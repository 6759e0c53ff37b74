"""Expert parallelism: the experts of a mixture are split over the data-parallel ranks.

Each of N ranks keeps E/N experts of every mixture, and all of the rest of the model. A token whose experts are on
another rank goes there and comes back: two all-to-alls in forward, two in backward (``ExchangeRows``). A small one
before them exchanges the number of tokens (``exchange_counts``). So ranks with different samples meet in every layer,
and in every micro-batch.

**Groups.** The dp ranks are cut into groups of N that exchange tokens (ep). Ranks with the same experts are in
different ones: they form the expert-data-parallel group (edp), dp/N times cp ranks. An expert's gradient on one rank
sums the tokens of all N ranks already, so it is summed over edp alone, and divided, like every gradient, by the number
of micro-batches in the global batch. The gradients of the rest of the model are summed over dp x cp as usual.

    dp = 4, ep = 2, E = 8       rank 0            rank 1            rank 2            rank 3
    experts                     0 1 2 3           4 5 6 7           0 1 2 3           4 5 6 7
    exchange tokens             +---- ep group ---+                 +---- ep group ---+
    sum experts' gradients      +------ edp (0 1 2 3), ranks 0 and 2; edp (4 5 6 7), ranks 1 and 3 ------+

Of n tokens a rank sends k n rows of C numbers each way, less what stays: with even routing 1/N of them.

Lepikhin et al., "GShard" (2020); Rajbhandari et al., "DeepSpeed-MoE" (2022); Megatron-LM's
``--expert-model-parallel-size``. Simplified: an all-to-all does not overlap with computation; rows stay in the order of
the ranks that sent them, where real systems permute them once more, to take all of an expert's rows at once; and every
dp rank runs the same number of micro-batches: a rank that has fewer adds an empty one, to serve the others.

**Bits.** The order of rows is that of one process, grain by grain (nn/moe/experts.py), and combining happens where the
token is. The bits do not show which rank computes an expert.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_reduce, all_to_all_single
from minidist.comm.group import ProcessGroup
from minidist.nn.layers import Module
from minidist.nn.moe.balance import Balance
from minidist.nn.moe.experts import Counts, Experts, MoE
from minidist.nn.precision.policy import Policy
from minidist.nn.tensor import Context, Function, Tensor
from minidist.overrides import overridable
from minidist.parallel.axis import Axis
from minidist.parallel.tools.regions import Region

Splits = list[int]  # rows to, or from, each rank


@overridable
def exchange_counts(counts: Counts, group: ProcessGroup) -> list[Counts]:
    """Exchange routing counts: return how many rows each rank sends to each expert of this rank.

    Args:
        counts: (E,), this rank's rows for each expert; each of the N ranks has E/N experts, in the order of the ranks.

    Returns:
        For each rank, the counts of its rows for the E/N experts here.
    """
    mine = np.array(counts, np.int64)  # in host memory, where they are needed
    found = np.empty_like(mine)
    all_to_all_single(found, mine, group=group)
    return found.reshape(group.size, -1).tolist()


@overridable
def exchange_rows(rows, send: Splits, receive: Splits, group: ProcessGroup):
    """Send the first ``send[0]`` rows to rank 0, the next ``send[1]`` to rank 1 and so on; return what arrives.

    Args:
        rows: (R, C)
        send, receive: numbers of rows that go to, and come from, each rank. Any of them may be 0.

    Returns:
        (rows received, C), the rows of rank 0 first.
    """
    arrived = xp.empty((sum(receive), rows.shape[1]), rows.dtype)
    all_to_all_single(arrived, rows, receive, send, group)
    return arrived


class ExchangeRows(Function):
    """Exchange of rows (R, C) between ranks; in backward their gradients go back to where the rows came from."""

    kernel = False

    @staticmethod
    def forward(ctx: Context, x, send: Splits, receive: Splits, group: ProcessGroup):
        ctx.send, ctx.receive, ctx.group = send, receive, group
        return _sent(x, send, receive, group, ctx.policy)

    @staticmethod
    def backward(ctx: Context, gradient):
        return _sent(gradient, ctx.receive, ctx.send, ctx.group, ctx.policy), None, None, None


def _sent(array, send: Splits, receive: Splits, group: ProcessGroup, policy: Policy):
    return policy.incoming(exchange_rows(policy.outgoing(array), send, receive, group))


def to_experts(x: Tensor, counts: Counts, group: ProcessGroup) -> tuple[Tensor, list[Counts], Splits, Splits]:
    """Send rows, sorted by expert, to the ranks that have their experts.

    Args:
        x: (R, C)
        counts: (E,), number of rows for each expert.
        group: the expert-parallel ranks.

    Returns:
        The rows that arrive, in the order of the ranks; for each rank, the counts of its rows for the experts here;
        and the numbers of rows sent to and received from each rank.
    """
    arriving = exchange_counts(counts, group)
    each = len(counts) // group.size
    send = [sum(counts[first : first + each]) for first in range(0, len(counts), each)]
    receive = [sum(some) for some in arriving]
    return ExchangeRows.apply(x, send, receive, group), arriving, send, receive


def from_experts(y: Tensor, send: Splits, receive: Splits, group: ProcessGroup) -> Tensor:
    """Send rows back to the ranks that they came from; ``send`` and ``receive`` come from ``to_experts``."""
    return ExchangeRows.apply(y, receive, send, group)


@overridable
def expert_groups(mesh: np.ndarray, ranks: int) -> tuple[list[list[int]], list[list[int]]]:
    """Return the groups that exchange tokens (ep), and the groups that hold the same experts (edp).

    Args:
        mesh: all ranks, in an array (pp, dp, cp, tp).
        ranks: number of ranks that share the experts, ep; they are consecutive along dp.

    Returns:
        Two lists of groups, each a list of ranks. Every rank is in one group of either list.
    """
    pp, dp, cp, tp = mesh.shape
    split = mesh.reshape(pp, dp // ranks, ranks, cp, tp)  # (pp, edp, ep, cp, tp)
    exchanging = np.moveaxis(split, 2, -1).reshape(-1, ranks)
    same_experts = split.transpose(0, 2, 4, 1, 3).reshape(-1, dp // ranks * cp)
    return exchanging.tolist(), same_experts.tolist()


def expert_process_groups(mesh: np.ndarray, ranks: int, group: ProcessGroup) -> tuple[ProcessGroup, ProcessGroup]:
    """Make the ep and edp groups, and return this rank's two. All ranks of ``group``, those of the mesh, call it."""
    found = []
    for axis, lists in zip(("ep", "edp"), expert_groups(mesh, ranks), strict=True):
        (mine,) = [made for members in lists if (made := group.new_group(members)) is not None]
        mine.name = axis
        found.append(mine)
    return found[0], found[1]


class ExpertParallelExperts(Experts):
    """This rank's experts, which serve the tokens of all ranks: rows (R, C), sorted by expert, to rows (R, C).

    Args:
        experts: all experts of a mixture; this rank keeps the weights of its own, in place.
        group: the N ranks that share the experts.
    """

    def __init__(self, experts: Experts, group: ProcessGroup) -> None:
        vars(self).update(vars(experts))
        self.compute, self.group = experts.forward, group  # forward uses the same Parameter objects
        for parameter in (self.fc, self.proj):
            parts = xp.split(parameter.data, group.size, parameter.expert_axis)
            parameter.data = parts[group.rank].copy()

    def forward(self, x: Tensor, counts: list[Counts]) -> Tensor:
        (mine,) = counts  # tokens of one grain
        arrived, grains, send, receive = to_experts(x, mine, self.group)
        return from_experts(self.compute(arrived, grains), send, receive, self.group)


class ExpertParallel(Axis):
    """Expert parallelism as an axis: every rank keeps some of each mixture's experts.

    Two data axes follow it: one for the experts, which fewer ranks hold, and one for all other parameters.

    Args:
        group: the ranks that exchange tokens.
    """

    pads_micro_batches = True  # all ranks of the group exchange tokens in every layer

    def apply(self, model: Any) -> Module:
        for block in model.blocks:
            if isinstance(block.mlp, MoE):
                block.mlp.experts = ExpertParallelExperts(block.mlp.experts, self.group)
        self.axis_of = {p.name: p.expert_axis for p in model.parameters() if p.expert_axis is not None}
        return model

    def regions(self, regions: dict[str, Region], trained: bool = True) -> dict[str, Region]:
        return regions | {name: self._cut(regions[name], axis) for name, axis in self.axis_of.items()}

    def _cut(self, region: Region, axis: int) -> Region:
        each = region.shape[axis] // self.group.size
        return region.cut(axis, self.group.rank * each, (self.group.rank + 1) * each)


class ExpertBalance(Axis):
    """Axis that sums the routers' counts. It splits nothing: every rank has all counts and all biases.

    Args:
        balance: the model's router counts and biases.
        groups: groups to sum over, one after another: ranks with other tokens, then ranks with other layers.
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
