"""Sequence chunks: equal parts of the sequence, each of which every layer but attention computes by itself.

A BLAS changes the bits of a product with its shape. So where the tokens of a sample are to be in several processes
(context parallelism), one process, too, multiplies chunk by chunk: the chunk is a grain, like the micro-batch and the
head. By default a sequence is one chunk.
"""

from collections.abc import Sequence

from minidist.backend import xp
from minidist.nn.documents import Documents
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import Context, Function, Tensor

TOKENS = -2  # the axis of the tokens in activations (..., T, C)


class Chunks:
    """How many chunks a sequence has, and which of them this process computes.

    Activations hold the tokens of those chunks, one chunk's after the other's.

    Attributes:
        count: N, the number of all chunks.
        here: how many of them this process computes: all N, or with context parallelism some.
    """

    def __init__(self, count: int) -> None:
        self.count = self.here = count

    def numbers(self, documents: Documents | None) -> Sequence[int]:
        """The numbers of those computed here, ascending. Context parallelism puts its own function in this place."""
        return range(self.count)

    def of(self, length: int) -> int:
        """How many parts a sequence of ``length`` tokens has: N, or 1 where they do not divide it, as in sampling."""
        return self.count if length % self.count == 0 else 1

    def slices(self, length: int, documents: Documents | None = None) -> list[slice]:
        """The tokens of each chunk that is here, among a full sequence of ``length`` tokens."""
        each = length // self.of(length)
        return [slice(c * each, (c + 1) * each) for c in (self.numbers(documents) if each < length else [0])]

    def split(self, x: Tensor) -> list[Tensor]:
        """The activations of each chunk that is here: (..., n t, C) to n times (..., t, C)."""
        count = self.here if x.shape[TOKENS] % self.here == 0 else 1
        if count == 1:
            return [x]
        each = x.shape[TOKENS] // count
        return [TakeTokens.apply(x, slice(c * each, (c + 1) * each)) for c in range(count)]

    def rngs(self, dropout_rng: DropoutRNG | None, documents: Documents | None = None) -> list[DropoutRNG | None]:
        """The name of each chunk's dropout."""
        if dropout_rng is None or self.count == 1:
            return [dropout_rng] * self.here
        return [dropout_rng.of_chunk(c) for c in self.numbers(documents)]


def join(parts: list[Tensor]) -> Tensor:
    """The chunks' activations in one: n times (..., t, C) to (..., n t, C)."""
    return parts[0] if len(parts) == 1 else JoinTokens.apply(*parts)


class TakeTokens(Function):
    """Some tokens of an activation; backward gives those their gradients."""

    @staticmethod
    def forward(ctx: Context, x, tokens: slice):
        ctx.input_shape, ctx.tokens = x.shape, tokens
        return xp.ascontiguousarray(x[..., tokens, :])

    @staticmethod
    def backward(ctx: Context, gradient):
        # The gradients of all chunks are added. x + (-0.0) is x for every x, the zeros of either sign among them.
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
