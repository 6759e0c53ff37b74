"""A GPT: the architecture of GPT-2 (Radford et al., 2019), small enough to train on a laptop.

Learned positions, pre-norm blocks, causal multi-head attention, a GELU MLP four times as wide as the model, and an
output head that shares the embedding's weight (tied weights). By default tokens are bytes. All MLPs, or every n-th, may
be mixtures of experts (moe/).

Shapes: B samples of T tokens, model width C, H heads of width D = C / H, and the vocabulary V, rounded up to a multiple
of H.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np

from minidist.backend import from_host, on_host, to_host, xp
from minidist.nn import functional
from minidist.nn.attention.plain import causal_attention
from minidist.nn.attention.tiled import SOFTMAXES, Keep, tiled_attention, tiles
from minidist.nn.chunks import Chunks, join, mean_over_chunks
from minidist.nn.layers import ColumnLinear, Dropout, Embedding, LayerNorm, Module, Parameter, RowLinear
from minidist.nn.loss import cross_entropy
from minidist.nn.moe.balance import Balance
from minidist.nn.moe.config import MoEConfig
from minidist.nn.moe.experts import Experts, MoE
from minidist.nn.moe.router import Router
from minidist.nn.random import DropoutRNG, generator
from minidist.nn.tensor import Tensor, no_grad

STD = 0.02  # of the initial weights, as in GPT-2
ATTENTION = ("plain", "tiled")


@dataclass(frozen=True)
class GPTConfig:
    """The sizes of a model.

    Raises:
        ValueError: for a size below 1, or a width that the heads do not divide.
    """

    vocab: int = 256
    context: int = 64  # the most tokens that it sees at once
    layers: int = 2
    heads: int = 4
    width: int = 64
    dropout: float = 0.0
    attention: str = "plain"  # or tiled: see nn/attention/
    attention_tile: int = 128  # queries, and keys, in a tile
    softmax: str = "exact"  # of tiled attention: see nn/attention/
    sequence_chunks: int = 1  # parts of the context, each computed by itself: see nn/chunks.py
    moe: MoEConfig | None = None  # the experts in place of MLPs; None for a dense model

    def __post_init__(self) -> None:
        for name in ("vocab", "context", "layers", "heads", "width", "attention_tile", "sequence_chunks"):
            size = getattr(self, name)
            if not isinstance(size, int) or size < 1:
                raise ValueError(f"{name} must be a whole number of at least 1, not {size!r}")
            if size >= 2**63:
                raise ValueError(f"{name} must be below 2^63")
        if self.width % self.heads:
            raise ValueError(
                f"width {self.width} is not divisible by {self.heads} heads: each head has width / heads values. "
                f"Nearest widths that fit: {self._nearest_widths()}"
            )
        if self.attention not in ATTENTION:
            raise ValueError(f"attention must be one of {', '.join(ATTENTION)}, not {self.attention!r}")
        if self.context % self.sequence_chunks:
            fitting = [n for n in range(1, min(self.context, 64) + 1) if self.context % n == 0]
            raise ValueError(
                f"sequence_chunks {self.sequence_chunks} does not divide a context of {self.context} tokens: choose "
                f"from {', '.join(map(str, fitting))}, or another context"
            )
        if self.softmax not in SOFTMAXES:
            raise ValueError(f"softmax must be one of {', '.join(SOFTMAXES)}, not {self.softmax!r}")
        if self.softmax != "exact" and self.attention == "plain" and self.sequence_chunks == 1:
            raise ValueError(
                f"softmax {self.softmax} is a way to merge tiles, and plain attention has none: choose attention tiled"
            )
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout must be at least 0 and below 1, not {self.dropout}")
        if self.moe is not None:
            self._check_experts(self.moe)

    def _check_experts(self, moe: MoEConfig) -> None:
        for name in ("expert_hidden", "shared_expert"):
            if getattr(moe, name) % self.heads:
                raise ValueError(
                    f"{name} {getattr(moe, name)} must be a multiple of the {self.heads} heads, which share the "
                    "hidden units of an expert evenly"
                )
        if self.layers < moe.moe_every:
            raise ValueError(
                f"moe_every {moe.moe_every} leaves no layer with experts in a model of {self.layers} layers: choose "
                f"from 1 to {self.layers}"
            )

    @property
    def sparse_layers(self) -> list[int]:
        """The layers that have experts: every n-th, the last of n."""
        return [] if self.moe is None else list(range(self.moe.moe_every - 1, self.layers, self.moe.moe_every))

    def _nearest_widths(self) -> str:
        below = self.width // self.heads * self.heads
        return " or ".join(str(width) for width in (below, below + self.heads) if width)


class Attention(Module):
    """Causal self-attention: (B, T, C) -> (B, T, C), by sequence chunks."""

    def __init__(self, config: GPTConfig, layer: int, chunks: Chunks | None = None) -> None:
        head_width = config.width // config.heads
        self.qkv = ColumnLinear(config.heads, config.width, 3 * head_width, STD)
        self.out = RowLinear(config.heads, head_width, config.width, STD / sqrt(2 * config.layers))
        self.heads = range(config.heads)  # the heads computed here
        self.rate, self.layer = config.dropout, layer
        self.chunks = chunks or Chunks(config.sequence_chunks)
        self.tile = config.attention_tile if config.attention == "tiled" else None
        self.softmax = config.softmax

    def forward(self, parts: list[Tensor], dropout_rng: DropoutRNG | None) -> list[Tensor]:
        """n chunks (B, t, C) to as many; by default n = 1."""
        qkv = join([self.qkv(part) for part in parts])  # (H, B, n t, 3 D)
        y = self.core(qkv, dropout_rng)  # (H, B, n t, D)
        return [self.out(part) for part in self.chunks.split(y)]  # (B, t, C) each

    def core(self, qkv: Tensor, dropout_rng: DropoutRNG | None) -> Tensor:
        """Attention between its two linear layers, where tokens meet: (H, B, T, 3 D) -> (H, B, T, D)."""
        length = qkv.shape[-2]
        count = self.chunks.of(length)
        if self.tile is None and count == 1:
            return causal_attention(qkv, self._keep(qkv.shape, dropout_rng), self.rate)
        tile = self.tile or length // count  # plain attention holds the scores of two chunks
        keep = self._keep_in_tiles(qkv.shape[1], tiles(length, tile, count), dropout_rng)
        return tiled_attention(qkv, keep, self.rate, tile, count, self.softmax)

    def _keep(self, shape: tuple[int, ...], dropout_rng: DropoutRNG | None):
        """The attention weights that dropout keeps, (H, B, T, T) bool, generated head by head; None for all."""
        if dropout_rng is None or self.rate == 0:
            return None
        _, batch, length, _ = shape
        return xp.stack([self._mask((batch, length, length), dropout_rng, head) for head in self.heads])

    def _keep_in_tiles(self, batch: int, parts: list[slice], dropout_rng: DropoutRNG | None) -> Keep | None:
        """The same, generated tile by tile when asked."""
        if dropout_rng is None or self.rate == 0:
            return None
        sizes = [part.stop - part.start for part in parts]
        return lambda h, i, j: self._mask((batch, sizes[j], sizes[i]), dropout_rng, self.heads[h], i, j)

    def _mask(self, shape: tuple[int, ...], dropout_rng: DropoutRNG, *part: int):
        return functional.dropout_mask(dropout_rng.generator(self.layer, "attention weights", *part), shape, self.rate)


class MLP(Module):
    """(..., C) -> (..., C) with 4 C hidden units, unless told how many; each head has as many of them."""

    def __init__(self, config: GPTConfig, hidden: int | None = None) -> None:
        hidden = (hidden or 4 * config.width) // config.heads
        self.fc = ColumnLinear(config.heads, config.width, hidden, STD)
        self.proj = RowLinear(config.heads, hidden, config.width, STD / sqrt(2 * config.layers))

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.gelu(self.fc(x))  # (H, B, T, 4 D)
        return self.proj(hidden)  # (B, T, C)


def mixture(config: GPTConfig, layer: int, balance: Balance) -> MoE:
    """The mixture of experts of a layer, with initial weights of the sizes of a dense MLP's."""
    moe, out_std = config.moe, STD / sqrt(2 * config.layers)
    router = Router(moe, config.width, STD, config.sparse_layers.index(layer), balance)
    experts = Experts(config.heads, moe.experts, config.width, moe.expert_hidden or 4 * config.width, STD, out_std)
    return MoE(router, experts, MLP(config, moe.shared_expert) if moe.shared_expert else None)


class Block(Module):
    """One layer: attention and MLP, each applied to a normalised copy and added to the residual stream.

    The MLP may be a mixture of experts; then ``balance`` is that of the model.
    """

    def __init__(
        self, config: GPTConfig, layer: int, chunks: Chunks | None = None, balance: Balance | None = None
    ) -> None:
        self.chunks = chunks or Chunks(config.sequence_chunks)
        self.norm1 = LayerNorm(config.width)
        self.attention = Attention(config, layer, self.chunks)
        self.dropout1 = Dropout(config.dropout, layer, "attention")
        self.norm2 = LayerNorm(config.width)
        self.mlp = mixture(config, layer, balance) if layer in config.sparse_layers else MLP(config)
        self.dropout2 = Dropout(config.dropout, layer, "mlp")

    def forward(self, x: Tensor, dropout_rng: DropoutRNG | None) -> Tensor:
        parts = self.chunks.split(x)  # n chunks (B, t, C): by default one, of all tokens
        attended = self.attention([self.norm1(part) for part in parts], dropout_rng)
        return join([self.rest(*each) for each in zip(parts, attended, self.chunks.rngs(dropout_rng), strict=False)])

    def rest(self, x: Tensor, attended: Tensor, dropout_rng: DropoutRNG | None) -> Tensor:
        """What follows attention, in one chunk: (B, t, C) and (B, t, C) -> (B, t, C)."""
        x = x + self.dropout1(attended, dropout_rng)
        return x + self.dropout2(self.mlp(self.norm2(x)), dropout_rng)


class Embeddings(Module):
    """Token plus position embedding: integers (B, T) -> (B, T, C), of the sequence chunks that are here."""

    def __init__(self, config: GPTConfig, chunks: Chunks | None = None) -> None:
        self.chunks = chunks or Chunks(config.sequence_chunks)
        self.token = Embedding(config.heads, config.vocab, config.width, STD)
        self.position = Parameter((config.context, config.width), std=STD)
        self.dropout = Dropout(config.dropout, 0, "embeddings")

    def forward(self, tokens, dropout_rng: DropoutRNG | None) -> Tensor:
        parts = []
        for place, rng in zip(self.chunks.places(tokens.shape[1]), self.chunks.rngs(dropout_rng), strict=False):
            x = self.token(tokens[:, place])  # (B, t, C)
            parts.append(self.dropout(functional.add_positions(x, self.position, place.start), rng))
        return join(parts)


class Head(Module):
    """The model's end: from the last layer to the logits and the loss, through the tied token embedding.

    Args:
        config: the model's.
        token: the module whose ``weight`` (H, V/H, C) is also the output weight.
    """

    def __init__(self, config: GPTConfig, token: Embedding, chunks: Chunks | None = None) -> None:
        self.chunks = chunks or Chunks(config.sequence_chunks)
        self.norm = LayerNorm(config.width)
        self.token = token
        self.vocab = config.vocab

    def forward(self, x: Tensor) -> Tensor:
        """The logits by heads: (B, T, C) -> (H, B, T, V/H)."""
        return self.output(self.norm(x))

    def output(self, x: Tensor) -> Tensor:
        """The product with the tied weight: (B, T, C) -> (H, B, T, V/H)."""
        x = functional.copy_to_heads(x, self.token.weight.shape[0])  # (H, B, T, C)
        return functional.linear(x, self.token.weight, transposed=True)

    def loss(self, x: Tensor, targets) -> Tensor:
        """The mean cross-entropy of the targets (B, T): (B, T, C) -> a scalar; of some chunks, their share of it."""
        places = self.chunks.places(targets.shape[1])
        means = [
            self.mean_loss(part, targets[:, place]) for part, place in zip(self.chunks.split(x), places, strict=True)
        ]
        return mean_over_chunks(means, self.chunks.of(targets.shape[1]))

    def mean_loss(self, x: Tensor, targets) -> Tensor:
        """The mean over the tokens of one chunk: (B, t, C) and targets (B, t) -> a scalar."""
        if targets.size == 0:
            return self(x).sum()  # 0, of a micro-batch without samples
        return cross_entropy(self(x), targets, self.vocab)


class GPT(Module):
    """The model.

    Args:
        config: its sizes.
        seed: of its initial weights, each of which depends only on the seed and the weight's name; None for none, for
            whoever asks about names and shapes alone.
        dtype: float32, or float64 as a reference.

    Attributes:
        balance: how evenly the experts are loaded; None in a dense model.
    """

    def __init__(self, config: GPTConfig, seed: int | None = 0, dtype=xp.float32) -> None:
        self.config = config
        self.chunks = Chunks(config.sequence_chunks)
        self.balance = Balance(config.moe, len(config.sparse_layers), config.sequence_chunks) if config.moe else None
        self.embeddings = Embeddings(config, self.chunks)
        self.blocks = [Block(config, layer, self.chunks, self.balance) for layer in range(config.layers)]
        self.head = Head(config, self.embeddings.token, self.chunks)
        if seed is not None:
            self.init_parameters(seed, dtype)

    def extra_state(self) -> dict:
        return {} if self.balance is None else self.balance.state()

    def load_extra_state(self, arrays: dict) -> None:
        if self.balance is not None:
            self.balance.load_state(arrays)

    def forward(self, tokens, targets, dropout_rng: DropoutRNG | None = None) -> Tensor:
        """The loss of one micro-batch.

        Args:
            tokens, targets: integers (B, T) below the vocabulary, T at most the context. With B = 0 the loss is 0.
            dropout_rng: names the dropout of this pass; None for none, as in evaluation.

        Returns:
            A scalar: the mean cross-entropy, in nats per token; where only some sequence chunks are computed here,
            their share of it.

        Raises:
            ValueError: for tokens out of range (on a GPU they are not looked at), too many of them, or shapes that
                differ.
        """
        self._check(tokens)
        return self.head.loss(self.hidden(tokens, dropout_rng), targets)

    def hidden(self, tokens, dropout_rng: DropoutRNG | None = None) -> Tensor:
        """The output of the last layer: integers (B, T) -> (B, T, C)."""
        x = self.embeddings(tokens, dropout_rng)
        for block in self.blocks:
            x = block(x, dropout_rng)
        return x

    def logits(self, tokens) -> Tensor:
        """The logits of the next token after each token: integers (B, T) -> (B, T, vocab).

        Raises:
            ValueError: as ``forward``; also if part of the vocabulary is in another process.
        """
        self._check(tokens)
        by_heads = self.head(self.hidden(tokens))  # (H, B, T, V/H)
        joined = by_heads.transpose(1, 2, 0, 3).reshape(*tokens.shape, -1)  # (B, T, V)
        if joined.shape[-1] < self.config.vocab:
            raise ValueError(f"only {joined.shape[-1]} of the {self.config.vocab} tokens' logits are in this process")
        return joined[..., : self.config.vocab]

    def _check(self, tokens) -> None:
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ValueError(f"tokens must have shape (samples, length), the length not 0, not {tokens.shape}")
        if tokens.size and on_host(tokens) and (tokens.min() < 0 or tokens.max() >= self.config.vocab):
            raise ValueError(
                f"tokens must be from 0 to {self.config.vocab - 1}: found {tokens.min()} to {tokens.max()}"
            )


@no_grad()
def generate(model: GPT, prompt: bytes, count: int, seed: int = 0, temperature: float = 1.0) -> bytes:
    """Continue a text byte by byte, each byte sampled from the model's distribution given the bytes before it.

    Args:
        model: with a vocabulary of at most 256 tokens, which are bytes.
        prompt: at least one byte. If it is longer than the context, the model sees its end.
        count: how many bytes to add.
        seed: of the samples.
        temperature: divides the logits; 0 always takes the most likely byte.

    Returns:
        The ``count`` new bytes.

    Raises:
        ValueError: for an empty prompt, a negative temperature, or a vocabulary that is not bytes.
    """
    if not prompt:
        raise ValueError("generate() needs a prompt of at least one byte")
    if temperature < 0:
        raise ValueError(f"temperature must not be negative, but is {temperature}")
    if model.config.vocab > 256:
        raise ValueError(f"generate() writes bytes, and this model has a vocabulary of {model.config.vocab}")
    rng = generator("generate", seed)
    text = bytearray(prompt)
    for _ in range(count):
        tokens = from_host(np.frombuffer(bytes(text[-model.config.context :]), np.uint8)[None])  # (1, T)
        logits = to_host(model.logits(tokens).data)[0, -1].astype(np.float64)  # (vocab,)
        text.append(int(logits.argmax()) if temperature == 0 else _sample(logits / temperature, rng))
    return bytes(text[len(prompt) :])


def _sample(logits: np.ndarray, rng: np.random.Generator) -> int:
    """A random index, each with probability softmax(logits)."""
    weights = np.exp(logits - logits.max())
    return int(rng.choice(len(weights), p=weights / weights.sum()))
