"""A GPT: the architecture of GPT-2 (Radford et al., 2019), small enough to train on a laptop.

Learned positions, pre-norm blocks, causal multi-head attention, a GELU MLP four times as wide as the model, and an
output head that shares the embedding's weight (tied weights). By default tokens are bytes. All MLPs, or every n-th, may
be mixtures of experts (moe/).

Shapes: B samples of T tokens, width C, H heads of width D = C / H, a vocabulary V, rounded up to a multiple of H.
"""

from math import sqrt

from minidist.backend import on_host, xp
from minidist.nn import functional
from minidist.nn.chunks import Chunks, join
from minidist.nn.config import GPTConfig
from minidist.nn.documents import Documents
from minidist.nn.layers import ColumnLinear, CoreAttention, Dropout, Embedding, LayerNorm, Module, Parameter, RowLinear
from minidist.nn.loss import cross_entropy, mean_over_places
from minidist.nn.moe.balance import Balance
from minidist.nn.moe.experts import mixture
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Tensor

STD = 0.02  # standard deviation of the initial weights, as in GPT-2


class Attention(Module):
    """Causal self-attention: (B, T, C) -> (B, T, C), by sequence chunks."""

    def __init__(self, config: GPTConfig, layer: int, chunks: Chunks) -> None:
        head_width = config.width // config.heads
        self.chunks, self.core = chunks, CoreAttention(config, layer, chunks)
        self.qkv = ColumnLinear(config.heads, config.width, 3 * head_width, STD)
        assert self.qkv.bias is not None
        self.qkv.bias.zero_gradient = ..., slice(head_width, 2 * head_width)  # a key's bias shifts all scores of a row
        self.out = RowLinear(config.heads, head_width, config.width, STD / sqrt(2 * config.layers))

    def forward(self, parts: list[Tensor], dropout_rng: DropoutRNG | None, documents: Documents | None) -> list[Tensor]:
        """Attend across n chunks, (B, t, C) -> (B, t, C) each; by default n = 1."""
        qkv = join(list(map(self.qkv, parts)))  # (H, B, n t, 3 D)
        y = self.core(qkv, dropout_rng, documents)  # (H, B, n t, D)
        return list(map(self.out, self.chunks.split(y)))  # (B, t, C) each


class MLP(Module):
    """MLP with a GELU: (..., C) -> (..., C). hidden: units in all, the same number per head; None for the model's."""

    def __init__(self, config: GPTConfig, hidden: int | None = None) -> None:
        hidden = (hidden or config.hidden_units) // config.heads
        self.fc = ColumnLinear(config.heads, config.width, hidden, STD)
        self.proj = RowLinear(config.heads, hidden, config.width, STD / sqrt(2 * config.layers))

    def forward(self, x: Tensor) -> Tensor:
        return self.proj(functional.gelu(self.fc(x)))  # (B, T, C), from hidden units (H, B, T, 4 D)


class Block(Module):
    """Layer of a model: attention and MLP, each applied to a normalised copy and added to the residual stream.

    The MLP may be a mixture of experts; it then needs the model's ``balance``.
    """

    norm, attend, feed_forward = LayerNorm, Attention, MLP

    def __init__(
        self, config: GPTConfig, layer: int, chunks: Chunks | None = None, balance: Balance | None = None
    ) -> None:
        self.chunks = chunks or Chunks(config.sequence_chunks)
        self.norm1 = self.norm(config.width)
        self.attention = self.attend(config, layer, self.chunks)
        self.dropout1, self.dropout2 = (Dropout(config.dropout, layer, place) for place in ("attention", "mlp"))
        self.norm2 = self.norm(config.width)
        mlp, sparse = self.feed_forward, layer in config.sparse_layers
        self.mlp = mixture(config, layer, balance, mlp, STD) if sparse else mlp(config)

    def forward(self, x: Tensor, dropout_rng: DropoutRNG | None, documents: Documents | None = None) -> Tensor:
        parts = self.chunks.split(x)  # n chunks (B, t, C): by default one, of all tokens
        attended = self.attention(list(map(self.norm1, parts)), dropout_rng, documents)
        return join(list(map(self.mlp_residual, parts, attended, self.chunks.rngs(dropout_rng, documents))))

    def mlp_residual(self, x: Tensor, attended: Tensor, dropout_rng: DropoutRNG | None) -> Tensor:
        """Add attention's output, then the MLP's, in one chunk: (B, t, C) and (B, t, C) -> (B, t, C)."""
        x = x + self.dropout1(attended, dropout_rng)
        return x + self.dropout2(self.mlp(self.norm2(x)), dropout_rng)


class Embeddings(Module):
    """Token plus position embedding: integers (B, T) -> (B, T, C), for the sequence chunks computed here."""

    def __init__(self, config: GPTConfig, chunks: Chunks) -> None:
        self.chunks = chunks
        self.token = Embedding(config.heads, config.vocab, config.width, STD)
        self.position = Parameter((config.context, config.width), std=STD)
        self.dropout = Dropout(config.dropout, 0, "embeddings")

    def forward(self, tokens, dropout_rng: DropoutRNG | None, documents: Documents | None = None) -> Tensor:
        parts, rngs = [], self.chunks.rngs(dropout_rng, documents)
        # If the chunks do not divide the tokens, as in sampling, there is one slice for several DropoutRNGs.
        for chunk, rng in zip(self.chunks.slices(tokens.shape[1], documents), rngs, strict=False):
            x = self.token(tokens[:, chunk])  # (B, t, C)
            if self.position is not None:
                x = functional.add_positions(x, self.position, documents.at(chunk) if documents else chunk.start)
            parts.append(self.dropout(x, rng))
        return join(parts)


class Head(Module):
    """End of a model: from the last layer to the logits and the loss, through ``token``, the tied embedding."""

    norm_of, tied = LayerNorm, True

    def __init__(self, config: GPTConfig, token: Embedding, chunks: Chunks) -> None:
        self.norm, self.token, self.vocab, self.chunks = self.norm_of(config.width), token, config.vocab, chunks

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits by heads: (B, T, C) -> (H, B, T, V/H)."""
        return self.output(self.norm(x))

    def output(self, x: Tensor) -> Tensor:
        """Multiply by the tied weight: (B, T, C) -> (H, B, T, V/H)."""
        x = functional.copy_to_heads(x, self.token.weight.shape[0])  # (H, B, T, C)
        return functional.linear(x, self.token.weight, transposed=True)

    def loss(self, x: Tensor, targets, documents: Documents | None = None) -> Tensor:
        """Sum the losses of the targets (B, T) that count, in the chunks here, over B T: (B, T, C) -> a scalar."""
        slices = self.chunks.slices(targets.shape[1], documents)
        parts = ((self(part), targets[:, chunk]) for part, chunk in zip(self.chunks.split(x), slices, strict=True))
        return mean_over_places(self.mean_loss, parts, (documents and documents.places) or targets.size)

    def mean_loss(self, logits: Tensor, targets) -> Tensor:
        """Return the mean cross-entropy: (H, ..., V/H) and targets (...) -> a scalar."""
        return cross_entropy(logits, targets, self.vocab)


class GPT(Module):
    """Language model: a transformer that predicts the next token.

    Args:
        seed: seed of the initial weights, each of which depends only on the seed and the weight's name. None leaves the
            parameters uninitialized, for callers that need names and shapes only.
        dtype: float32, or float64 as a reference.

    Attributes:
        balance: how evenly the experts are loaded; None in a dense model.
    """

    parts = Embeddings, Block, Head

    def __init__(self, config: GPTConfig, seed: int | None = 0, dtype=xp.float32) -> None:
        self.config, self.chunks = config, Chunks(config.sequence_chunks)
        self.balance = Balance(config.moe, len(config.sparse_layers), config.sequence_chunks) if config.moe else None
        embeddings, block, head = self.parts
        self.embeddings = embeddings(config, self.chunks)
        self.blocks = [block(config, layer, self.chunks, self.balance) for layer in range(config.layers)]
        self.head = head(config, self.embeddings.token, self.chunks)
        if seed is not None:
            self.init_parameters(seed, dtype)

    def extra_state(self) -> dict:
        return {} if self.balance is None else self.balance.state()

    def load_extra_state(self, arrays: dict) -> None:
        if self.balance is not None:
            self.balance.load_state(arrays)

    def forward(
        self, tokens, targets=None, dropout_rng: DropoutRNG | None = None, documents: Documents | None = None
    ) -> Tensor:
        """Return the mean cross-entropy of one micro-batch, a scalar in nats per token (ignored targets: see loss.py).

        If only some sequence chunks are computed here, return their share. Without targets: logits (H, B, T, V/H).

        Args:
            tokens, targets: integers (B, T) below the vocabulary, T at most the context. With B = 0 the loss is 0.
            dropout_rng: names the dropout of this pass; None for none, as in evaluation.
            documents: where the samples' documents are; None if each sample is one.

        Raises:
            ValueError: if tokens are not integers, out of range (not checked on a GPU) or too many, or if the shapes
                differ.
        """
        if tokens.ndim != 2 or tokens.shape[1] == 0:
            raise ValueError(
                f"tokens must have shape (samples, length) with a length of at least 1, got {tokens.shape}"
            )
        if tokens.dtype.kind not in "iu":
            raise ValueError(f"tokens must be integers, not {tokens.dtype}")
        if tokens.shape[1] > (context := self.config.context):  # rotary positions alone would go on
            raise ValueError(
                f"{tokens.shape[1]} tokens do not fit a context of {context}: pass fewer, or a longer context"
            )
        if tokens.size and on_host(tokens) and (tokens.min() < 0 or tokens.max() >= self.config.vocab):
            found = f"found {tokens.min()} to {tokens.max()}"
            raise ValueError(f"tokens must be from 0 to {self.config.vocab - 1}: {found}")
        x = self.embeddings(tokens, dropout_rng, documents)  # (B, T, C)
        for block in self.blocks:
            x = block(x, dropout_rng, documents)
        return self.head(x) if targets is None else self.head.loss(x, targets, documents)

    def logits(self, tokens) -> Tensor:
        """Return the logits of the next token after each token: integers (B, T) -> (B, T, vocab).

        Raises:
            ValueError: see ``forward``; also if part of the vocabulary is in another process.
        """
        joined = self(tokens).transpose(1, 2, 0, 3).reshape(*tokens.shape, -1)  # (B, T, V)
        if joined.shape[-1] < self.config.vocab:
            raise ValueError(
                f"only {joined.shape[-1]} of the {self.config.vocab} logits of a token are in this process"
            )
        return joined[..., : self.config.vocab]
