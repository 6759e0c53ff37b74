"""The two all-to-alls of expert parallelism: rows to the ranks that have their experts, and back.

A rank does not know how many rows it will get: that is up to the other ranks' routers. So the counts are exchanged
first, and tell how long each message is. In backward the gradients take the same ways in the other direction.
"""

import numpy as np

from minidist.backend import xp
from minidist.comm.collectives import all_to_all_single
from minidist.comm.group import ProcessGroup
from minidist.nn.moe.experts import Counts
from minidist.nn.precision.policy import Policy
from minidist.nn.tensor import Context, Function, Tensor
from minidist.overrides import overridable

Splits = list[int]  # rows to, or from, each rank


@overridable
def exchange_counts(counts: Counts, group: ProcessGroup) -> list[Counts]:
    """Exchange routing counts: return how many of each rank's rows come to each expert of this rank.

    Args:
        counts: of this rank's rows, for all E experts; each of the N ranks has E/N of them, in the order of
            the ranks.

    Returns:
        For each rank its rows for the E/N experts here.
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
        send, receive: how many rows go to, and come from, each rank. Any of them may be 0.

    Returns:
        (rows received, C), those of rank 0 first.
    """
    arrived = xp.empty((sum(receive), rows.shape[1]), rows.dtype)
    all_to_all_single(arrived, rows, receive, send, group)
    return arrived


class ExchangeRows(Function):
    """Rows (R, C) to the rows that arrive; in backward their gradients go back to where they came from."""

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
        counts: of the rows of each expert.
        group: the expert-parallel ranks.

    Returns:
        The rows that arrive, one rank's after the other's; of each rank the counts of its rows for the experts here;
        and how many rows were sent to and received from each rank.
    """
    arriving = exchange_counts(counts, group)
    each = len(counts) // group.size
    send = [sum(counts[first : first + each]) for first in range(0, len(counts), each)]
    receive = [sum(some) for some in arriving]
    return ExchangeRows.apply(x, send, receive, group), arriving, send, receive


def from_experts(y: Tensor, send: Splits, receive: Splits, group: ProcessGroup) -> Tensor:
    """Send rows back to the ranks that they came from; ``send`` and ``receive`` as ``to_experts`` returned them."""
    return ExchangeRows.apply(y, receive, send, group)
