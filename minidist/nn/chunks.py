"""Sequence chunks: equal parts of the sequence. Every layer but attention computes each of them by itself.

The bits of a BLAS product depend on its shape. Context parallelism spreads the tokens of a sample over several
processes; to get the same bits, a single process multiplies chunk by chunk, too. The chunk is a grain, like the
micro-batch and the head. By default a sequence is one chunk.
"""

from collections.abc import Sequence

from minidist.backend import xp
from minidist.nn.documents import Documents
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Context, Function, Tensor

TOKENS = -2  # the axis of the tokens in activations (..., T, C)


class Chunks:
    """Number of chunks in a sequence, and the chunks that this process computes.

    Activations hold the tokens of these chunks, one chunk after another.

    Attributes:
        count: N, the number of all chunks.
        here: the number of chunks that this process computes: N, or fewer with context parallelism.
    """

    def __init__(self, count: int) -> None:
        self.count = self.here = count

    def numbers(self, documents: Documents | None) -> Sequence[int]:
        """Return the numbers of the chunks computed here, ascending. Context parallelism replaces this method."""
        return range(self.count)

    def of(self, length: int) -> int:
        """Return the number of chunks of ``length`` tokens: N, or 1 if N does not divide ``length``, as in sampling."""
        return self.count if length % self.count == 0 else 1

    def slices(self, length: int, documents: Documents | None = None) -> list[slice]:
        """Return, for each chunk computed here, the slice of a full sequence of ``length`` tokens that it covers."""
        each = length // self.of(length)
        return [slice(c * each, (c + 1) * each) for c in (self.numbers(documents) if each < length else [0])]

    def split(self, x: Tensor) -> list[Tensor]:
        """Split activations into the chunks computed here: (..., n t, C) to n times (..., t, C)."""
        count = self.here if x.shape[TOKENS] % self.here == 0 else 1
        if count == 1:
            return [x]
        each = x.shape[TOKENS] // count
        return [TakeTokens.apply(x, slice(c * each, (c + 1) * each)) for c in range(count)]

    def rngs(self, dropout_rng: DropoutRNG | None, documents: Documents | None = None) -> list[DropoutRNG | None]:
        """Return the DropoutRNG of each chunk computed here."""
        if dropout_rng is None or self.count == 1:
            return [dropout_rng] * self.here
        return [dropout_rng.of_chunk(c) for c in self.numbers(documents)]


def join(parts: list[Tensor]) -> Tensor:
    """Join the activations of chunks: n times (..., t, C) to (..., n t, C)."""
    return parts[0] if len(parts) == 1 else JoinTokens.apply(*parts)


class TakeTokens(Function):
    """Slice of an activation's tokens; all other tokens get the gradient 0."""

    @staticmethod
    def forward(ctx: Context, x, tokens: slice):
        ctx.input_shape, ctx.tokens = x.shape, tokens
        return xp.ascontiguousarray(x[..., tokens, :])

    @staticmethod
    def backward(ctx: Context, gradient):
        # The gradients of all chunks are added, and x + (-0.0) is x for every x, including both zeros.
        grad_x = xp.full(ctx.input_shape, -0.0, gradient.dtype)
        grad_x[..., ctx.tokens, :] = gradient
        return grad_x, None


class JoinTokens(Function):
    @staticmethod
    def forward(ctx: Context, *parts):
        ctx.count = len(parts)
        return xp.concatenate(parts, TOKENS)

    @staticmethod
    def backward(ctx: Context, gradient):
        return tuple(xp.ascontiguousarray(part) for part in xp.split(gradient, ctx.count, TOKENS))
