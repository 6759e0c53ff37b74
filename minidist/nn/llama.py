"""A Llama (Touvron et al., 2023; Llama 3, Grattafiori et al., 2024): a GPT with other parts in the same places.

    part        GPT-2                              Llama
    norm        LayerNorm                          RMSNorm: no mean, no bias
    position    a learned vector is added          queries and keys are rotated
    attention   each head has keys and values      H / G heads share them (grouped queries)
    MLP         GELU, 4 C hidden units             SwiGLU: gated, with 8/3 C hidden units
    biases      everywhere                         nowhere
    output      the embedding again (tied)         a weight of its own, unless ``tied``

Shapes as in gpt.py; G heads of keys and values, D = C / H even.
"""

from math import sqrt

from minidist.backend import from_host
from minidist.nn.attention.online_softmax import Total
from minidist.nn.chunks import Chunks, join
from minidist.nn.config import GPTConfig
from minidist.nn.documents import Documents
from minidist.nn.functional import copy_to_heads, linear
from minidist.nn.gpt import GPT, STD, Block, Embeddings, Head
from minidist.nn.layers import ColumnLinear, CoreAttention, Embedding, Module, Parameter, RMSNorm, RowLinear
from minidist.nn.llama_operations import fork, rotary_table, rotate, silu_gate
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor


class GroupedLinears(Module):
    """Linear layers into queries, and into the keys and values that several heads share.

    Args:
        heads, groups: H and G, which divides H.
        width: C.
        head_width: D.
    """

    def __init__(self, heads: int, groups: int, width: int, head_width: int) -> None:
        self.q = Parameter((heads, width, head_width), std=STD, decay=True)
        self.kv = Parameter((groups, width, 2 * head_width), std=STD, decay=True)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Project (B, T, C) to queries (H, B, T, D), and to keys and values (G, B, T, 2 D)."""
        x = self.enter(x)
        return self.project(x, self.q), self.project(self.once(x), self.kv)

    def project(self, x: Tensor, weight: Parameter) -> Tensor:
        return linear(copy_to_heads(x, weight.shape[0]), weight)

    def enter(self, x: Tensor) -> Tensor:
        """Return the input of both products: all tokens."""
        return fork(x)

    def once(self, x: Tensor) -> Tensor:
        """Return the input of keys and values, whose gradient counts once."""
        return x

    def all_sum(self, total: Total) -> Total:
        """Return the sum of the gradients of keys and values over all heads that share them."""
        return total


class GroupedQueryAttention(Module):
    """Causal self-attention with rotary positions, whose heads share keys and values: (B, T, C) -> (B, T, C)."""

    def __init__(self, config: GPTConfig, layer: int, chunks: Chunks) -> None:
        head_width = config.width // config.heads
        self.chunks, self.core = chunks, CoreAttention(config, layer, chunks)
        self.qkv = GroupedLinears(config.heads, config.groups, config.width, head_width)
        self.out = RowLinear(config.heads, head_width, config.width, STD / sqrt(2 * config.layers), bias=False)
        self.head_width, self.base = head_width, config.rope_base

    def forward(self, parts: list[Tensor], dropout_rng: DropoutRNG | None, documents: Documents | None) -> list[Tensor]:
        queries, keys_values = [], []
        # Where the chunks do not divide the tokens, as in sampling, there is one part.
        for part, number in zip(parts, self.chunks.numbers(documents), strict=False):
            q, kv = self.qkv(part)  # (H, B, t, D) and (G, B, t, 2 D)
            chunk = slice(number * q.shape[-2], (number + 1) * q.shape[-2])
            angles = turn(chunk, documents, self.head_width, self.base)
            queries.append(rotate(q, *angles))
            keys_values.append(rotate(kv, *angles))
        y = self.core(join(queries), dropout_rng, documents, join(keys_values), self.qkv.all_sum)  # (H, B, n t, D)
        return list(map(self.out, self.chunks.split(y)))  # (B, t, C) each


def turn(chunk: slice, documents: Documents | None, width: int, base: float) -> tuple:
    """Return cosines and sines for the tokens of a chunk: (t, D / 2) each, or (B, t, D / 2) where documents restart."""
    positions = documents.at(chunk) if documents else chunk.start
    if isinstance(positions, int):
        return tuple(map(from_host, rotary_table(positions, chunk.stop - chunk.start, width, base)))
    return tuple(from_host(values[positions]) for values in rotary_table(0, positions.max(initial=0) + 1, width, base))


class SwiGLU(Module):
    """MLP with gated hidden units, the same number in each head: (..., C) -> (..., C)."""

    def __init__(self, config: GPTConfig, hidden: int | None = None) -> None:
        hidden = (hidden or config.hidden_units) // config.heads
        self.fc = ColumnLinear(config.heads, config.width, 2 * hidden, STD, bias=False)  # gate and up
        self.proj = RowLinear(config.heads, hidden, config.width, STD / sqrt(2 * config.layers), bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(silu_gate(self.fc(x)))  # (B, T, C)


class LlamaBlock(Block):
    norm, attend, feed_forward = RMSNorm, GroupedQueryAttention, SwiGLU


class TokenEmbeddings(Embeddings):
    """Token embeddings alone: positions enter in attention."""

    def __init__(self, config: GPTConfig, chunks: Chunks) -> None:
        super().__init__(config, chunks)
        self.position = None


class LlamaHead(Head):
    norm_of = RMSNorm

    def __init__(self, config: GPTConfig, token: Embedding, chunks: Chunks) -> None:
        own = token if config.tied else Embedding(config.heads, config.vocab, config.width, STD)
        super().__init__(config, own, chunks)
        self.tied = bool(config.tied)


class Llama(GPT):
    parts = TokenEmbeddings, LlamaBlock, LlamaHead
