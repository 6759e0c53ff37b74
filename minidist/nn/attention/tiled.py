"""Attention tile by tile: never more scores than one tile has, so its memory grows with T and not with T x T.

This is the idea of FlashAttention (Dao et al., 2022; the order of the loops is that of the second version, Dao, 2023).
A tile of queries stays while the tiles of keys and values pass by; tiles that lie wholly in the future are skipped.
Backward computes the scores again from queries and keys, and with the saved sum of weights of each row the softmax.

On a GPU the point is traffic: a tile fits the fast memory of a multiprocessor, and scores never travel to the slow one
(slow_memory.py counts). In NumPy only the memory is saved.

A tile is a grain: its products have the same shapes whoever computes it, and what crosses tiles is added in an order
that leaves no trace (online_softmax.py). In 16 bits the operands of all products are rounded, as in plain attention.
"""

from collections.abc import Callable, Iterator
from math import log

from minidist.backend import xp
from minidist.nn.attention.online_softmax import HIDDEN, LOG2E, OnlineSoftmax, Total, exponent_of, weights
from minidist.nn.attention.plain import dropped
from minidist.nn.tensor import Context, Function, Tensor

Keep = Callable[[int, int, int], object]  # (head, tile of queries, tile of keys) -> bool (B, keys, queries)


def tiles(length: int, tile: int) -> list[slice]:
    """Consecutive tokens, ``tile`` of them each; the last one may be shorter."""
    return [slice(first, min(first + tile, length)) for first in range(0, length, tile)]


def visited(length: int, tile: int) -> Iterator[tuple[int, slice, int, slice]]:
    """Number and tokens of the queries' tile, then of the keys', of each pair that holds a query not before a key."""
    parts = tiles(length, tile)
    for i, queries in enumerate(parts):
        for j, keys in enumerate(parts[: i + 1]):
            yield i, queries, j, keys


class TiledAttention(Function):
    """softmax(q k^T / sqrt(D)) v for each head, where a token attends to itself and the tokens before it."""

    gradient_flops = (2.5,)  # five products for forward's two: the scores are computed again

    @staticmethod
    def flops(output, qkv, keep, rate, tile) -> int:
        heads, batch, length, width = output.shape
        scores = sum((q.stop - q.start) * (k.stop - k.start) for _, q, _, k in visited(length, tile))
        return 2 * 2 * heads * batch * scores * width

    @staticmethod
    def forward(ctx: Context, qkv, keep: Keep | None, rate: float, tile: int):
        heads, batch, length, _ = qkv.shape
        cast = ctx.policy.round
        q, k, v = xp.split(qkv, 3, axis=-1)  # (H, B, T, D) each, views
        q = cast(q * (q.shape[-1] ** -0.5 * LOG2E))  # so that the scores come in base 2
        output = xp.empty(v.shape, qkv.dtype)
        totals = xp.empty((heads, batch, length, 1), qkv.dtype)
        exponents = xp.empty((heads, batch, length, 1), xp.int32)
        for h in range(heads):
            for i, queries in enumerate(tiles(length, tile)):
                softmax = OnlineSoftmax(output[h, :, queries].shape)  # of (B, queries, D)
                for j, keys in enumerate(tiles(queries.stop, tile)):
                    scores = _scores(q[h, :, queries], k[h, :, keys], i == j)  # (B, keys, queries)
                    exponent = exponent_of(scores, -2)  # (B, 1, queries)
                    exps = weights(scores, exponent)
                    mask = None if keep is None else keep(h, i, j)
                    kept = dropped(cast(exps), mask, rate, cast)
                    softmax.merge(
                        exponent.swapaxes(-1, -2).astype(xp.int32),
                        exps.sum(axis=-2)[..., None],  # (B, queries, 1)
                        kept.swapaxes(-1, -2) @ v[h, :, keys],  # (B, queries, D)
                    )
                output[h, :, queries], totals[h, :, queries] = softmax.result(qkv.dtype)
                exponents[h, :, queries] = softmax.exponent
        ctx.save_for_backward(q, k, v, output, exact=(totals, exponents))
        ctx.keep, ctx.rate, ctx.tile = keep, rate, tile
        return output

    @staticmethod
    def backward(ctx: Context, gradient):
        q, k, v, output, totals, exponents = ctx.saved_arrays
        cast, keep, rate = ctx.policy.round, ctx.keep, ctx.rate
        heads, batch, length, width = q.shape
        grad_qkv = xp.empty((heads, batch, length, 3 * width), q.dtype)
        gradient = cast(gradient / totals)  # (H, B, T, D): now exps may stand for softmax P = exps / totals
        # Softmax: dS = P (dP - sum over keys of P dP), and that sum equals the sum over D of output times gradient.
        shift = xp.einsum("hbtd,hbtd->hbt", gradient, output)[:, :, None]  # (H, B, 1, T)
        for h in range(heads):
            grads = {part: Total((batch, length, width)) for part in "qkv"}
            for i, queries, j, keys in visited(length, tile=ctx.tile):
                scores = _scores(q[h, :, queries], k[h, :, keys], i == j)
                exps = weights(scores, exponents[h, :, queries].swapaxes(-1, -2).astype(xp.float32))
                incoming = gradient[h, :, queries]  # (B, queries, D)
                mask = None if keep is None else keep(h, i, j)
                grads["v"].add(dropped(cast(exps), mask, rate, cast) @ incoming, keys)
                grad_scores = dropped(v[h, :, keys] @ incoming.swapaxes(-1, -2), mask, rate)
                grad_scores -= shift[h, :, :, queries]
                grad_scores *= exps  # (B, keys, queries)
                grad_scores = cast(grad_scores)
                grads["q"].add(grad_scores.swapaxes(-1, -2) @ k[h, :, keys], queries)
                grads["k"].add(grad_scores @ q[h, :, queries], keys)
            grad_q, grad_k, grad_v = xp.split(grad_qkv[h], 3, axis=-1)  # views into grad_qkv
            grad_q[...] = grads["q"].rounded(q.dtype)
            grad_k[...] = grads["k"].rounded(q.dtype)
            grad_v[...] = grads["v"].rounded(q.dtype)
            grad_q *= width**-0.5
            grad_k *= log(2)  # q was scaled to base 2
        return grad_qkv, None, None, None


def _scores(q, k, diagonal: bool):
    """The scores of a tile, keys by queries; on the diagonal those of later keys are hidden."""
    scores = k @ q.swapaxes(-1, -2)  # (B, keys, queries)
    if diagonal:
        length = scores.shape[-1]
        scores += xp.tril(xp.full((length, length), HIDDEN, scores.dtype), -1)
    return scores


def tiled_attention(qkv: Tensor, keep: Keep | None = None, rate: float = 0.0, tile: int = 128) -> Tensor:
    """Attention of each head over the token itself and the tokens before it, tile by tile.

    Args:
        qkv: (H, B, T, 3 D), each head's queries, keys and values side by side.
        keep: (head, tile of queries, tile of keys) -> bool (B, keys, queries), the attention weights that dropout
            keeps; called in forward and again in backward. None keeps all.
        rate: the dropout probability; kept weights are scaled by 1 / (1 - rate).
        tile: how many queries, and how many keys, a tile has.

    Returns:
        (H, B, T, D)
    """
    return TiledAttention.apply(qkv, keep, rate, tile)
