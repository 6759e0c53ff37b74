"""Context parallelism: every rank has some chunks of each sequence, in every layer.

Layers that treat each token by itself need no other rank. Attention does: a query needs the keys and values of all
tokens before it. Five ways to bring them together:

    ring         keys and values travel round the ranks while each rank computes with those it has
    zigzag       the same; a rank has an early and a late chunk, so that causal attention gives each the same work
    all-gather   every rank gets all keys and values at once; the chunks are zigzag's (Llama 3)
    ulysses      an all-to-all turns chunks of all heads into all tokens of some heads, a second one turns them back
    balanced     the ring; each micro-batch's chunks are dealt out by their work, which depends on its documents

Queries stay where they are; only with ulysses do they travel too. Liu et al., "Ring Attention with Blockwise
Transformers" (2023); zigzag: Brandon et al., "Striped Attention" (2023), whose stripes are single tokens, in the form
that Megatron-LM and ring-flash-attention use; Jacobs et al., "DeepSpeed Ulysses" (2023); "The Llama 3 Herd of Models"
(2024), section 3.3.2. Unlike sequence parallelism (sequence.py), which splits tokens between the tensor-parallel
regions only, each rank keeps its tokens through the whole model, with all parameters: their gradients are summed over
the data-parallel and the context-parallel ranks together.

A rank sends per layer and sample, T tokens over N ranks, d and d_kv the widths of its queries and keys over all heads:

                forward, elements                  backward, elements and, with them, sums of two float64 each
    passing     (N-1) T/N 2 d_kv                   the same, and N T/N 2 d_kv sums (all-gather: N-1 for N)
    ulysses     (N-1)/N T/N (2 d + 2 d_kv)         the same

Simplified: every rank loads the full batch and embeds its chunks of it; real loaders give a rank only its chunks.

**Bits.** A chunk is a grain (nn/chunks.py), a tile never crosses one, and what tiles add up does not depend on their
order (nn/attention/online_softmax.py). So keys may arrive in any order.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from minidist import trace
from minidist.backend import xp
from minidist.comm.collectives import all_gather_into_tensor, all_to_all_single
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import irecv, isend
from minidist.comm.work import Work
from minidist.nn.attention import online_softmax
from minidist.nn.attention.plain import queries_keys_values
from minidist.nn.attention.tiled import (
    SOFTMAXES,
    NumberedTiles,
    Pair,
    TileMask,
    TileMath,
    begin_backward,
    end_backward,
    flops_of_pairs,
    head_blocks,
    scaled_queries,
    tiled_attention,
    tiles,
)
from minidist.nn.chunks import TOKENS
from minidist.nn.documents import Documents
from minidist.nn.gpt import GPT
from minidist.nn.layers import CoreAttention
from minidist.nn.loss import identity
from minidist.nn.measuring import memory_bytes
from minidist.nn.precision.policy import Policy, current, unpacked
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Context, Function, Tensor
from minidist.overrides import overridable
from minidist.parallel.axis import Axis, parallelize_module
from minidist.parallel.tools.mappings import all_to_all_in_group

KINDS = ("ring", "zigzag", "all-gather", "ulysses", "balanced")
BOTH_ENDS = ("zigzag", "all-gather")  # kinds in which a rank has chunks from both ends of the sequence
HEADS = 0  # the axis of the heads in (H, B, T, D)
KEYS_VALUES, GRADIENTS = 0, 1  # the tags of two streams of messages in one ring
Visit = Callable[[int, Any], Any]


def pass_on(array, group: ProcessGroup, tag: int) -> tuple:
    """Begin to send an array to the next rank; return the buffer for the previous rank's array, and both messages."""
    right, left = (group.rank + 1) % group.size, (group.rank - 1) % group.size
    arrived = xp.empty_like(array)
    return arrived, [irecv(arrived, left, group, tag), isend(array, right, group, tag)]


@trace.traced("wait for the ring", "wait")
def wait_for(works: Sequence[Work]) -> None:
    for work in works:
        work.wait()


@overridable
def ring_forward(keys_values, group: ProcessGroup, visit: Visit) -> None:
    """Send keys and values once round the ring; while this rank computes with some, the next ones are in flight.

    Bytes that ``isend`` does not push at once move during ``wait_for`` (comm/transports/transport.py).

    Args:
        keys_values: this rank's keys and values; not changed.
        group: the ranks of the ring. Each sends N - 1 times.
        visit: called with a rank and its keys and values; this rank's own come first, then the previous rank's.
    """
    for step in range(group.size):
        following, works = pass_on(keys_values, group, KEYS_VALUES) if step < group.size - 1 else (None, [])
        visit((group.rank - step) % group.size, keys_values)
        wait_for(works)
        keys_values = following


@overridable
def ring_backward(keys_values, group: ProcessGroup, visit: Visit):
    """Send keys and values round the ring again, and their gradients one hop later, until these are home.

    Args:
        keys_values, group: see ``ring_forward``.
        visit: returns this rank's contribution to the gradients of the keys and values, a ``Total``.

    Returns:
        The gradients of this rank's own keys and values, summed over all ranks: a ``Total``.
    """
    arrived, behind = None, None  # gradients, and their messages
    for step in range(group.size):
        following, works = pass_on(keys_values, group, KEYS_VALUES) if step < group.size - 1 else (None, [])
        gradients = visit((group.rank - step) % group.size, keys_values)
        if behind is not None:
            wait_for(behind)
            gradients.merge(gradients.of(arrived))
        arrived, behind = pass_on(gradients.arrays(), group, GRADIENTS)
        wait_for(works)
        keys_values = following
    wait_for(behind)
    return gradients.of(arrived)  # the last hop led home


def all_gather_forward(keys_values, group: ProcessGroup, visit: Visit) -> None:
    """Gather all keys and values on every rank, then visit them in rank order. Arguments: see ``ring_forward``."""
    gathered = xp.empty((group.size, *keys_values.shape), keys_values.dtype)
    all_gather_into_tensor(gathered, keys_values, group)
    for rank, array in enumerate(gathered):
        visit(rank, array)


def all_gather_backward(keys_values, group: ProcessGroup, visit: Visit):
    """Gather keys and values again, and send each rank this rank's contribution to its gradients.

    Arguments and result: see ``ring_backward``. A reduce-scatter would send as much, but it adds in one float64,
    where these sums take two.
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


def parts_of(ranks: int, kind: str) -> int:
    """Return how many parts the sequence is cut into: one for each rank, or two, one from each end."""
    return 2 * ranks if kind in BOTH_ENDS else ranks


@overridable
def sequence_chunks_of(rank: int, ranks: int, chunks: int, kind: str) -> list[int]:
    """Return the chunks of the sequence that a rank has, ascending.

    ``ring`` and ``ulysses``: consecutive ones, the same number on each rank. ``zigzag`` and ``all-gather``: the
    sequence has twice as many parts as there are ranks, and rank r has part r and part r from the end.

    Raises:
        ValueError: if the ranks, or twice as many, do not divide the chunks.
    """
    parts = parts_of(ranks, kind)
    if chunks % parts:
        split = f"{chunks} sequence chunks cannot be split over {ranks} ranks by {kind}"
        raise ValueError(f"{split}: their number must be a multiple of {parts}")
    each = chunks // parts
    mine = (rank, parts - 1 - rank) if kind in BOTH_ENDS else (rank,)
    return [part * each + chunk for part in mine for chunk in range(each)]


@overridable
def deal_chunks(work: Sequence[int], ranks: int) -> list[list[int]]:
    """Deal the chunks out: return each rank's, ascending, the same number for each and nearly the same sum of work.

    The chunk with the most work goes first, to the rank with the least work among those that still lack chunks. Ties go
    to the lower number (longest processing time first: Graham, 1969).

    Args:
        work: work of each chunk.
        ranks: number of ranks, which must divide the number of chunks.
    """
    found: list[list[int]] = [[] for _ in range(ranks)]
    for chunk in sorted(range(len(work)), key=lambda chunk: (-work[chunk], chunk)):
        lacking = [mine for mine in found if len(mine) < len(work) // ranks]
        min(lacking, key=lambda mine: sum(work[each] for each in mine)).append(chunk)
    return [sorted(mine) for mine in found]


def work_of_chunks(chunks: int, documents: Documents | None) -> list[int]:
    """Return the work of each chunk's queries: the number of tiles, each a chunk of queries by a chunk of keys.

    The tiles reach from the first chunk that a query of any sample sees to the chunk itself.
    """
    if documents is None:
        return list(range(1, chunks + 1))
    length = documents.first.shape[1]
    each = length // chunks
    begins = documents.first[:, ::each].min(axis=0, initial=length)  # (chunks,): its first token sees the earliest keys
    return (np.arange(1, chunks + 1) - begins // each).tolist()


def chunks_of_ranks(ranks: int, chunks: int, kind: str, documents: Documents | None = None) -> list[list[int]]:
    """Return the chunks of a micro-batch that each rank has."""
    if kind == "balanced":
        return deal_chunks(work_of_chunks(chunks, documents), ranks)
    return [sequence_chunks_of(rank, ranks, chunks, kind) for rank in range(ranks)]


def tiles_of_ranks(length: int, tile: int, chunks: int, shares: list[list[int]]) -> list[NumberedTiles]:
    """Return each rank's tiles: their numbers in the sequence of ``length`` tokens, and their slices on that rank.

    Args:
        shares: the chunks of each rank.
    """
    per_chunk = len(tiles(length // chunks, tile))
    found = []
    for here in shares:
        numbers = [chunk * per_chunk + part for chunk in here for part in range(per_chunk)]
        found.append(list(zip(numbers, tiles(length // len(shares), tile, len(here)), strict=True)))
    return found


RING = ring_forward, ring_backward
PASSES = {"ring": RING, "zigzag": RING, "all-gather": (all_gather_forward, all_gather_backward), "balanced": RING}


def record(q, pairs: list[Pair], times: float, policy: Policy) -> None:
    """Record the kernel of one visit, which computes these pairs of tiles, if recording.

    The kernel reads queries, keys, values and the output so far, and writes the output; in backward, their gradients
    too.

    Args:
        q: (H, B, T/N, D)
        times: the kernel's FLOPs as a multiple of forward's.
    """
    if trace.log is not None:
        nbytes = int(5 * times * memory_bytes(q, policy))
        trace.kernel("attend", int(times * flops_of_pairs(q, pairs)), nbytes, policy.name)


@dataclass(frozen=True)
class Passing:
    """Way for keys and values to reach every rank.

    Attributes:
        group: the context-parallel ranks.
        tiles: each rank's tiles.
        mine: this rank's tiles.
        forward, backward: two functions that bring them, from PASSES.
    """

    group: ProcessGroup
    tiles: list[NumberedTiles]
    forward: Callable
    backward: Callable
    mine = property(lambda self: self.tiles[self.group.rank])


class PassingAttention(Function):
    """Causal attention of this rank's queries over the keys of all ranks: (H, B, T/N, 3 D) -> (H, B, T/N, D).

    Keys and values that heads share travel once: ``kv`` (G, B, T/N, 2 D); ``qkv`` then has only queries (H, B, T/N, D).
    The arguments are those of ``TiledAttention``, and a ``Passing``.
    """

    gradient_flops, recomputed_flops, kernel = (2.5,), 0.5, False  # a kernel for each rank's keys: see ``record``

    @staticmethod
    def flops(output, qkv, math: TileMath, kv, all_sum, passing: Passing) -> int:
        return sum(flops_of_pairs(output, math.mask.pairs(passing.mine, theirs)) for theirs in passing.tiles)

    @staticmethod
    def forward(ctx: Context, qkv, math: TileMath, kv, all_sum, passing: Passing):
        q, k, v = queries_keys_values(qkv, kv)
        q = scaled_queries(q, ctx.policy)
        (heads, batch, length, _), mine, softmax = q.shape, passing.mine, math.softmax
        blocks = head_blocks(heads, batch, [tokens for _, tokens in mine])
        # (h, B, queries, D) each
        rows = {(h.start, i): softmax.OnlineSoftmax(q[h, :, tokens].shape) for h in blocks for i, tokens in mine}

        def visit(rank: int, keys_values) -> None:
            k, v = ctx.policy.incoming_factor(keys_values)  # (G, B, T/N, D) each
            with trace.span(f"attend to keys of rank {rank}"):
                pairs = list(math.mask.pairs(mine, passing.tiles[rank]))
                for h in blocks:
                    for pair in pairs:
                        rows[h.start, pair[0]].merge(*math.attend(h, pair, q, k, v))
                record(q, pairs, 1, ctx.policy)

        passing.forward(ctx.policy.outgoing(xp.stack((k, v))), passing.group, visit)
        output, totals = xp.empty(q.shape, qkv.dtype), xp.empty((heads, batch, length, 1), qkv.dtype)
        exponents = xp.empty(totals.shape, softmax.EXPONENT)
        for h in blocks:
            for i, queries in mine:
                output[h, :, queries], totals[h, :, queries] = rows[h.start, i].result(qkv.dtype)
                exponents[h, :, queries] = rows[h.start, i].exponent
        ctx.save_for_backward(q, k, v, output, exact=(totals, exponents))
        ctx.math, ctx.shared, ctx.all_sum, ctx.blocks, ctx.passing = math, kv is not None, all_sum, blocks, passing
        return output

    @staticmethod
    def backward(ctx: Context, gradient):
        q, k, v, output, totals, exponents = ctx.saved_factors
        math, passing = ctx.math, ctx.passing
        gradient, shift = begin_backward(output, gradient, totals, ctx.policy)
        grad_q = math.softmax.Total(q.shape)

        def visit(rank: int, keys_values):
            k, v = ctx.policy.incoming_factor(keys_values)  # (G, B, T/N, D) each
            gradients = math.softmax.Total((2, *q.shape))
            with trace.span(f"attend to keys of rank {rank}, backward"):
                pairs = list(math.mask.pairs(passing.mine, passing.tiles[rank]))
                for h in ctx.blocks:
                    into = grad_q.at(h), gradients.at((0, h)), gradients.at((1, h))
                    for pair in pairs:
                        math.add_gradients(into, h, pair, q, k, v, exponents, gradient, shift)
                record(q, pairs, PassingAttention.gradient_flops[0], ctx.policy)
            if not ctx.shared:
                return gradients
            of_groups = online_softmax.Total((2, *k.shape))
            of_groups.add_heads(gradients, slice(0, len(q)), len(q) // len(k))
            return of_groups

        total = passing.backward(ctx.policy.outgoing(xp.stack((unpacked(k), unpacked(v)))), passing.group, visit)
        grad_kv = ctx.all_sum(total).rounded(q.dtype)
        grad_qkv, grad_kv = end_backward(grad_q.rounded(q.dtype), grad_kv, ctx.shared)
        return grad_qkv, None, grad_kv, None, None


class ContextParallelAttention(CoreAttention):
    """Attention of this rank's tokens, the T/N of its chunks: (H, B, T/N, 3 D) -> (H, B, T/N, D).

    Args:
        core: the single-process attention, whose settings are used here.
        group: the context-parallel ranks, N of them.
        kind: one of KINDS.
        shares: function from a micro-batch's documents to the chunks of each rank.
    """

    def __init__(self, core: CoreAttention, group: ProcessGroup, kind: str, shares: Callable) -> None:
        vars(self).update(vars(core))
        self.group, self.kind, self.shares = group, kind, shares

    def forward(self, qkv: Tensor, dropout_rng: DropoutRNG | None, documents=None, kv=None, all_sum=identity) -> Tensor:
        length, chunks = qkv.shape[TOKENS] * self.group.size, self.chunks.count
        tile = self.tile or length // chunks
        mask = TileMask(tiles(length, tile, chunks), documents)
        keep = self._keep_in_tiles(qkv.shape[1], mask.parts, dropout_rng)
        if self.kind == "ulysses":
            return self.ulysses(qkv, keep, documents, kv, all_sum, tile)
        math = TileMath(mask, keep, self.rate, SOFTMAXES[self.softmax], current())
        passing = Passing(self.group, tiles_of_ranks(length, tile, chunks, self.shares(documents)), *PASSES[self.kind])
        return PassingAttention.apply(qkv, math, kv, all_sum, passing)

    def ulysses(self, qkv: Tensor, keep, documents, kv: Tensor | None, all_sum, tile: int) -> Tensor:
        """Compute attention of some heads over all tokens, between two all-to-alls."""
        qkv = all_to_all_in_group(qkv, self.group, HEADS, TOKENS)  # (H/N, B, T, 3 D)
        kv = kv and all_to_all_in_group(kv, self.group, HEADS, TOKENS)  # (G/N, B, T, 2 D)
        first = self.group.rank * qkv.shape[HEADS]
        here = keep and (lambda h, i, j: keep(first + h, i, j))
        chunks = self.chunks.count
        y = tiled_attention(qkv, here, self.rate, documents, kv, all_sum, tile, chunks, self.softmax)  # (H/N, B, T, D)
        return all_to_all_in_group(y, self.group, TOKENS, HEADS)  # (H, B, T/N, D)


class ContextParallel(Axis):
    """Context parallelism as an axis: every rank computes some chunks of each sequence.

    The ranks hold the same parameters. Their gradients, and their shares of the loss, are summed by the data axis,
    whose group they are in.

    Args:
        group: the context-parallel ranks.
        kind: one of KINDS.
    """

    def __init__(self, group: ProcessGroup, kind: str) -> None:
        super().__init__(group)
        self.kind = kind

    def apply(self, model: GPT) -> GPT:
        """Set which chunks the model computes here, and replace its attention by the context-parallel one."""
        # All layers ask about one micro-batch before the next: one entry is enough.
        shares = lru_cache(maxsize=1)(partial(chunks_of_ranks, self.group.size, model.chunks.count, self.kind))
        # All parts of the model share this object (gpt.py), so embeddings and loss compute the same chunks.
        model.chunks.here //= self.group.size
        model.chunks.numbers = lambda documents: shares(documents)[self.group.rank]
        attention = partial(ContextParallelAttention, kind=self.kind, shares=shares)
        parallelize_module(model, self.group, {"blocks.*.attention.core": attention})
        return model
