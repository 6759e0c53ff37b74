"""Context parallelism: every rank has some chunks of each sequence, in every layer.

All that a layer does to a token by itself needs no other rank. Attention does: a query needs the keys and values of all
tokens before it. Four ways to bring them together:

    ring         keys and values travel round the ranks while each rank computes with those it has
    zigzag       the same; a rank has an early and a late chunk, so that causal attention gives each the same work
    all-gather   every rank gets all keys and values at once; the chunks are zigzag's (Llama 3)
    ulysses      an all-to-all turns chunks of all heads into all tokens of some heads, a second one turns them back

Queries stay where they are; only with ulysses do they travel too. Liu et al., "Ring Attention with Blockwise
Transformers" (2023); zigzag: Brandon et al., "Striped Attention" (2023), whose stripes are single tokens, in the form
that Megatron-LM and ring-flash-attention use; Jacobs et al., "DeepSpeed Ulysses" (2023); "The Llama 3 Herd of Models"
(2024), section 3.3.2. Unlike sequence parallelism (sequence.py), which splits tokens between the tensor-parallel
regions only, each rank keeps its tokens through the whole model, with all parameters: their gradients are summed over
the data-parallel and the context-parallel ranks together.

A rank sends per layer and sample, T tokens over N ranks, d and d_kv the widths of its queries and keys over all heads:

                forward, elements                  backward, elements and, with them, float64 pairs
    passing     (N-1) T/N 2 d_kv                   the same, and N T/N 2 d_kv pairs (all-gather: N-1 for N)
    ulysses     (N-1)/N T/N (2 d + 2 d_kv)         the same

Simplified: a rank embeds its chunks out of the full batch, where real loaders bring it no more than those.

**Bits.** A chunk is a grain (nn/chunks.py), a tile never crosses one, and what tiles add up does not depend on their
order (nn/attention/online_softmax.py). So keys may arrive in any order.
"""

from functools import partial

from minidist.comm.group import ProcessGroup
from minidist.nn.attention.tiled import SOFTMAXES, tiled_attention, tiles
from minidist.nn.chunks import TOKENS
from minidist.nn.gpt import GPT, Attention
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor
from minidist.overrides import overridable
from minidist.parallel.axis import Axis
from minidist.parallel.tools.mappings import all_to_all_in_group
from minidist.parallel.tools.passing_attention import PASSES, PassingAttention
from minidist.parallel.tools.plan import parallelize_module

KINDS = ("ring", "zigzag", "all-gather", "ulysses")
PAIRED = ("zigzag", "all-gather")  # those in which a rank has chunks from both ends
HEADS = 0  # the axis of the heads in (H, B, T, D)


def parts_of(ranks: int, kind: str) -> int:
    """Into how many parts the sequence is cut: a rank has one, or one from each end. They divide the chunks."""
    return 2 * ranks if kind in PAIRED else ranks


@overridable
def sequence_chunks_of(rank: int, ranks: int, chunks: int, kind: str) -> list[int]:
    """Which chunks of the sequence a rank has, ascending.

    ``ring`` and ``ulysses``: consecutive ones, the same number on each rank. ``zigzag`` and ``all-gather``: of twice as
    many parts as there are ranks, part r and part r from the end.

    Raises:
        ValueError: if the ranks, or twice as many, do not divide the chunks.
    """
    parts = parts_of(ranks, kind)
    if chunks % parts:
        raise ValueError(f"{chunks} sequence chunks cannot be split over {ranks} ranks by {kind}: {parts} must divide")
    each = chunks // parts
    mine = (rank, parts - 1 - rank) if kind in PAIRED else (rank,)
    return [part * each + chunk for part in mine for chunk in range(each)]


def tiles_of_ranks(length: int, tile: int, chunks: int, ranks: int, kind: str) -> list[list[tuple[int, slice]]]:
    """Return each rank's tiles: their numbers in the sequence of ``length`` tokens, and the tokens on that rank."""
    per_chunk = len(tiles(length // chunks, tile))
    found = []
    for rank in range(ranks):
        here = sequence_chunks_of(rank, ranks, chunks, kind)
        numbers = [chunk * per_chunk + part for chunk in here for part in range(per_chunk)]
        found.append(list(zip(numbers, tiles(length // ranks, tile, len(here)), strict=True)))
    return found


class ContextParallelAttention(Attention):
    """Attention of the tokens of this rank: (H, B, T/N, 3 D) -> (H, B, T/N, D), T/N being those of its chunks.

    Args:
        attention: of one process, whose modules and settings this one takes over.
        group: the context-parallel ranks, N of them.
        kind: one of KINDS.
    """

    def __init__(self, attention: Attention, group: ProcessGroup, kind: str) -> None:
        vars(self).update(vars(attention))
        self.group, self.kind = group, kind

    def core(self, qkv: Tensor, dropout_rng: DropoutRNG | None) -> Tensor:
        length = qkv.shape[TOKENS] * self.group.size
        tile = self.tile or length // self.chunks.count
        keep = self._keep_in_tiles(qkv.shape[1], tiles(length, tile, self.chunks.count), dropout_rng)
        if self.kind == "ulysses":
            return self.all_tokens(qkv, keep, tile)
        ranks_tiles = tiles_of_ranks(length, tile, self.chunks.count, self.group.size, self.kind)
        softmax = SOFTMAXES[self.softmax]
        return PassingAttention.apply(qkv, keep, self.rate, ranks_tiles, softmax, PASSES[self.kind], self.group)

    def all_tokens(self, qkv: Tensor, keep, tile: int) -> Tensor:
        """Ulysses: attention of some heads over all tokens."""
        qkv = all_to_all_in_group(qkv, self.group, HEADS, TOKENS)  # (H/N, B, T, 3 D)
        first = self.group.rank * qkv.shape[HEADS]
        here = keep and (lambda h, i, j: keep(first + h, i, j))
        y = tiled_attention(qkv, here, self.rate, tile, self.chunks.count, self.softmax)  # (H/N, B, T, D)
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
        """Tell the model which chunks are here, and put context-parallel attention in its place."""
        model.chunks.here = sequence_chunks_of(self.group.rank, self.group.size, model.chunks.count, self.kind)
        plan = {"blocks.*.attention": partial(ContextParallelAttention, kind=self.kind)}
        return parallelize_module(model, self.group, plan)
