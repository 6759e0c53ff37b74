"""Attention whose queries stay on their rank, while the keys and values of all ranks pass by.

How they pass is one of PASSES: a pair of functions, for forward and for backward. Both call
``visit(rank, keys_values)`` once for each rank, with that rank's keys and values. In backward a visit returns what this
rank's queries add to the gradients of those keys and values, and the pass sums that up and brings it home.
"""

from collections.abc import Callable
from types import ModuleType

from minidist import trace
from minidist.backend import xp
from minidist.comm.collectives import all_gather_into_tensor, all_to_all_single
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import irecv, isend
from minidist.nn.attention.tiled import (
    Keep,
    TileMath,
    flops_of_pairs,
    head_blocks,
    incoming,
    masks,
    pairs,
    scaled_queries,
    unscale,
)
from minidist.nn.measuring import memory_bytes
from minidist.nn.precision.policy import Policy, unpacked
from minidist.nn.tensor import Context, Function
from minidist.overrides import overridable

Visit = Callable[[int, object], object]
Tiles = list[tuple[int, slice]]  # number and tokens of each


class Exchange:
    """An array on its way to the next rank of a ring, and one from the rank before."""

    def __init__(self, array, group: ProcessGroup, tag: int) -> None:
        self.received = xp.empty_like(array)
        self.works = [
            irecv(self.received, (group.rank - 1) % group.size, group, tag),
            isend(array, (group.rank + 1) % group.size, group, tag),
        ]

    @trace.traced("wait for the ring", "wait")
    def wait(self):
        """The array from the rank before."""
        for work in self.works:
            work.wait()
        return self.received


@overridable
def ring_forward(keys_values, group: ProcessGroup, visit: Visit) -> None:
    """Send keys and values once round the ring; the next ones arrive while this rank computes with those it has.

    Args:
        keys_values: this rank's; not changed.
        group: the ranks of the ring. Each sends N - 1 times.
        visit: called with a rank and its keys and values; this rank's own come first, then those of the rank before.
    """
    for step in range(group.size):
        following = Exchange(keys_values, group, 0) if step < group.size - 1 else None
        visit((group.rank - step) % group.size, keys_values)
        if following is not None:
            keys_values = following.wait()


@overridable
def ring_backward(keys_values, group: ProcessGroup, visit: Visit):
    """Send keys and values round again, and their gradients one hop behind them, until these are home.

    Args:
        keys_values, group: as in ``ring_forward``.
        visit: returns what this rank adds to the gradients of the keys and values, a ``Total``.

    Returns:
        The gradients of this rank's own keys and values, summed over all ranks: a ``Total``.
    """
    behind = None
    for step in range(group.size):
        following = Exchange(keys_values, group, 0) if step < group.size - 1 else None
        gradients = visit((group.rank - step) % group.size, keys_values)
        if behind is not None:
            gradients.merge(gradients.of(behind.wait()))
        behind = Exchange(gradients.arrays(), group, 1)
        if following is not None:
            keys_values = following.wait()
    return gradients.of(behind.wait())  # the last hop led home


def all_gather_forward(keys_values, group: ProcessGroup, visit: Visit) -> None:
    """Bring all keys and values to every rank at once. Arguments as of ``ring_forward``."""
    gathered = xp.empty((group.size, *keys_values.shape), keys_values.dtype)
    all_gather_into_tensor(gathered, keys_values, group)
    for rank, array in enumerate(gathered):
        visit(rank, array)


def all_gather_backward(keys_values, group: ProcessGroup, visit: Visit):
    """Gather them again, and send each rank what this rank adds to its gradients. As ``ring_backward``.

    A reduce-scatter would send as much, but add in float64 what takes two of them.
    """
    totals = []
    all_gather_forward(keys_values, group, lambda rank, array: totals.append(visit(rank, array)))
    outgoing = xp.stack([total.arrays() for total in totals])  # (ranks, ...)
    arrived = xp.empty_like(outgoing)
    all_to_all_single(arrived, outgoing, group=group)
    gradients = totals[0].of(arrived[0])
    for array in arrived[1:]:
        gradients.merge(gradients.of(array))
    return gradients


PASSES = {
    "ring": (ring_forward, ring_backward),
    "zigzag": (ring_forward, ring_backward),
    "all-gather": (all_gather_forward, all_gather_backward),
}


def record(q, mine: Tiles, theirs: Tiles, times: float, policy: Policy) -> None:
    """Record the kernel of one visit, of my tiles of queries and their tiles of keys, if recording.

    It reads queries, keys, values and what there is of the output, and writes that; backward has a gradient of each.

    Args:
        q: (H, B, T/N, D)
        times: how many times forward's FLOPs.
    """
    if trace.log is not None:
        nbytes = int(5 * times * memory_bytes(q, policy))
        trace.kernel("attend", int(times * flops_of_pairs(q, pairs(mine, theirs))), nbytes, policy.name)


class PassingAttention(Function):
    """Causal attention of this rank's queries over the keys of all ranks: (H, B, T/N, 3 D) -> (H, B, T/N, D)."""

    gradient_flops, recomputed_flops, kernel = (2.5,), 0.5, False  # a kernel for each rank's keys: see ``record``

    @staticmethod
    def flops(output, qkv, keep, rate, ranks_tiles, softmax, passes, group) -> int:
        mine = ranks_tiles[group.rank]
        return flops_of_pairs(output, (pair for theirs in ranks_tiles for pair in pairs(mine, theirs)))

    @staticmethod
    def forward(
        ctx: Context, qkv, keep: Keep | None, rate: float, ranks_tiles: list, softmax: ModuleType, passes: tuple,
        group: ProcessGroup,
    ):  # fmt: skip
        q, k, v = xp.split(qkv, 3, axis=-1)  # (H, B, T/N, D) each, views
        q = scaled_queries(q, ctx.policy)
        heads, batch, length, _ = q.shape
        math, mine = TileMath(softmax, ctx.policy, rate), ranks_tiles[group.rank]
        blocks = head_blocks(heads, batch, [tokens for _, tokens in mine])
        rows = {
            (h.start, i): softmax.OnlineSoftmax(q[h, :, tokens].shape) for h in blocks for i, tokens in mine
        }  # of (h, B, queries, D) each

        def visit(rank: int, keys_values) -> None:
            k, v = ctx.policy.incoming_factor(keys_values)  # (H, B, T/N, D) each
            with trace.span(f"attend to keys of rank {rank}"):
                for h in blocks:
                    for i, queries, j, keys in pairs(mine, ranks_tiles[rank]):
                        tile = q[h, :, queries], k[h, :, keys], v[h, :, keys]
                        rows[h.start, i].merge(*math.attend(*tile, i == j, masks(keep, h, i, j)))
                record(q, mine, ranks_tiles[rank], 1, ctx.policy)

        passes[0](ctx.policy.outgoing(xp.stack((k, v))), group, visit)
        output, totals = xp.empty(q.shape, qkv.dtype), xp.empty((heads, batch, length, 1), qkv.dtype)
        exponents = xp.empty(totals.shape, softmax.EXPONENT)
        for h in blocks:
            for i, queries in mine:
                output[h, :, queries], totals[h, :, queries] = rows[h.start, i].result(qkv.dtype)
                exponents[h, :, queries] = rows[h.start, i].exponent
        ctx.save_for_backward(q, k, v, output, exact=(totals, exponents))
        ctx.keep, ctx.math, ctx.blocks, ctx.ranks_tiles, ctx.passes, ctx.group = (
            keep, math, blocks, ranks_tiles, passes, group,
        )  # fmt: skip
        return output

    @staticmethod
    def backward(ctx: Context, gradient):
        q, k, v, output, totals, exponents = ctx.saved_factors
        math, mine = ctx.math, ctx.ranks_tiles[ctx.group.rank]
        gradient, shift = incoming(output, gradient, totals, ctx.policy)
        grad_q = math.softmax.Total(q.shape)

        def visit(rank: int, keys_values):
            k, v = ctx.policy.incoming_factor(keys_values)  # (H, B, T/N, D) each
            gradients = math.softmax.Total((2, *k.shape))
            with trace.span(f"attend to keys of rank {rank}, backward"):
                for h in ctx.blocks:
                    into = grad_q.at(h), gradients.at((0, h)), gradients.at((1, h))
                    for pair in pairs(mine, ctx.ranks_tiles[rank]):
                        math.add_gradients(into, ctx.keep, h, pair, q, k, v, exponents, gradient, shift)
                record(q, mine, ctx.ranks_tiles[rank], PassingAttention.gradient_flops[0], ctx.policy)
            return gradients

        grad_kv = ctx.passes[1](ctx.policy.outgoing(xp.stack((unpacked(k), unpacked(v)))), ctx.group, visit)
        parts = grad_q.rounded(q.dtype), *grad_kv.rounded(q.dtype)
        unscale(*parts[:2])
        return xp.concatenate(parts, -1), None, None, None, None, None, None
