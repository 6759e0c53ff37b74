"""Attention tile by tile: never more scores than one tile has, so its memory grows with T and not with T x T.

This is the idea of FlashAttention (Dao et al., 2022; the order of the loops is that of the second version, Dao, 2023).
A tile of queries stays while the tiles of keys and values pass by; tiles that lie wholly in the future are skipped.
Backward computes the scores again from queries and keys, and with the saved sum of weights of each row the softmax.

On a GPU the point is traffic: a tile fits the fast memory of a multiprocessor, and scores never travel to the slow one
(slow_memory.py counts). In NumPy only the memory is saved.

A tile is a grain: its products have the same shapes on every rank, and sums over tiles do not depend on the order
(online_softmax.py). In 16 bits the operands of all products are rounded, as in plain attention.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from math import log
from types import ModuleType

from minidist.backend import cache_blocks, from_host, xp
from minidist.nn.attention import online32, online_softmax
from minidist.nn.attention.online_softmax import HIDDEN, LOG2E
from minidist.nn.attention.plain import dropped, key_heads_of, queries_keys_values
from minidist.nn.documents import Documents, any_key_seen, hidden_keys
from minidist.nn.loss import identity
from minidist.nn.precision.policy import Packed, Policy, current, unpacked
from minidist.nn.tensor import Context, Function, Tensor

Keep = Callable[[int, int, int], object]  # (head, tile of queries, tile of keys) -> bool (B, keys, queries)
NumberedTiles = list[tuple[int, slice]]  # number and tokens of each
Pair = tuple[int, slice, int, slice]  # number and tokens of a tile of queries, then of a tile of keys
CACHE = 1 << 15  # scores, few enough to stay in the cache for several passes
SOFTMAXES = {"exact": online_softmax, "online32": online32}  # two modules with the same names


def tiles(length: int, tile: int, chunks: int = 1) -> list[slice]:
    """Return slices of consecutive tokens, ``tile`` in each; fewer in the last slice of each sequence chunk."""
    chunk = length // chunks
    return [
        slice(start + first, start + min(first + tile, chunk))
        for start in range(0, length, chunk)
        for first in range(0, chunk, tile)
    ]


@dataclass(frozen=True)
class TileMask:
    """Mask over tiles of scores: the tiles to compute, and the hidden scores in them.

    Attributes:
        parts: the tokens of each tile, in the whole sequence.
        documents: where each token's document begins; None for one document.
    """

    parts: list[slice]
    documents: Documents | None = None

    def pairs(self, mine: NumberedTiles | None = None, theirs: NumberedTiles | None = None) -> Iterator[Pair]:
        """Yield the pairs to compute: a tile of queries in ``mine``, and a tile of keys in ``theirs`` that it sees.

        Args:
            mine, theirs: None for all tiles of the sequence.
        """
        for i, queries in enumerate(self.parts) if mine is None else mine:
            for j, keys in enumerate(self.parts) if theirs is None else theirs:
                if self.seen(i, j):
                    yield i, queries, j, keys

    def seen(self, i: int, j: int) -> bool:
        """Return whether tile i of queries sees any key of tile j."""
        if self.documents is None:
            return j <= i
        return any_key_seen(self.documents.first, self.parts[i], self.parts[j])

    def hidden(self, pair: Pair, dtype):
        """Return the mask to add to a pair's scores, (keys, queries) or (B, keys, queries); None to hide no key."""
        i, _, j, _ = pair  # not its slices: they index this rank's tokens, and ``parts`` the whole sequence
        if self.documents is None:
            length = self.parts[i].stop - self.parts[i].start
            return xp.tril(xp.full((length, length), HIDDEN, dtype), -1) if i == j else None
        hidden = hidden_keys(self.documents.first, self.parts[i], self.parts[j])
        return xp.where(from_host(hidden), HIDDEN, 0).astype(dtype) if hidden.any() else None


def flops_of_pairs(output, pairs: Iterable[Pair]) -> int:
    """Return the FLOPs of forward's two products over these pairs of tiles; ``output`` is (H, B, T, D)."""
    heads, batch, _, width = output.shape
    return 2 * 2 * heads * batch * scores_in(pairs) * width


def scores_in(pairs: Iterable[Pair]) -> int:
    """Return the number of scores in these pairs of tiles."""
    return sum((queries.stop - queries.start) * (keys.stop - keys.start) for _, queries, _, keys in pairs)


@dataclass(frozen=True)
class TileMath:
    """Arithmetic on one pair of tiles, the same in one process and in each of several.

    Attributes:
        mask: the pairs to compute, and the hidden scores in them.
        keep, rate: the attention weights that dropout keeps, and its rate; None keeps all.
        softmax: the module of a softmax in pieces: one of SOFTMAXES.
        policy: the precision, which rounds the operands of products and multiplies them.
    """

    mask: TileMask
    keep: Keep | None
    rate: float
    softmax: ModuleType
    policy: Policy

    def attend(self, heads: slice, pair: Pair, q, k, v) -> tuple:
        """Compute forward in h heads. If a query sees none of these keys, its M and sums are those of no keys.

        Args:
            q: (H, B, T, D), scaled so that the scores come in base 2.
            k, v: (G, B, T, D)

        Returns:
            Arguments of ``OnlineSoftmax.merge``: M (h, B, queries, 1), the sums of weights (h, B, queries, 1) and of
            weighted values (h, B, queries, D), times 2^-M.
        """
        as_factor = self.policy.rounded_factor
        q, k, v = tiles_of(heads, pair, q, k, v)
        hidden = self.mask.hidden(pair, q.dtype)
        scores = self.scores(q, k, hidden)  # (h, B, keys, queries)
        exponent = self.softmax.exponent_of(scores, -2)  # (h, B, 1, queries)
        if hidden is not None and hidden.ndim > 2:
            exponent = xp.where(exponent <= HIDDEN / 2, self.softmax.OnlineSoftmax.least, exponent)
        exps = self.softmax.weights(scores, exponent)
        kept = dropped(as_factor(exps), self.kept(heads, pair), self.rate, as_factor)
        value = self.policy.mix(kept.swapaxes(-1, -2), v)  # (h, B, queries, D)
        return exponent.swapaxes(-1, -2), self.policy.kernels.column_sums(exps)[..., None], value

    def add_gradients(self, into, heads: slice, pair: Pair, q, k, v, exponents, gradient, shift) -> None:
        """Compute backward in h heads: add the pair's contributions to the gradients of q, k and v.

        Args:
            into: the three ``Total``s of those heads, (h, B, T, D) each.
            q, k, v: arguments of ``attend``.
            exponents: M of the whole rows, (H, B, T, 1).
            gradient: (H, B, T, D), gradient of the output, divided by the rows' sums of weights.
            shift: the sum over D of output times gradient, (H, B, 1, T).
        """
        _, queries, _, keys = pair
        as_factor, matmul = self.policy.rounded_factor, self.policy.matmul
        q, k, v = tiles_of(heads, pair, q, k, v)
        gradient, mask = contiguous(gradient[heads, :, queries]), self.kept(heads, pair)
        exponent = exponents[heads, :, queries].swapaxes(-1, -2)  # (h, B, 1, queries)
        hidden = self.mask.hidden(pair, q.dtype)
        exps = self.softmax.weights(self.scores(q, k, hidden), exponent)  # (h, B, keys, queries)
        grad_v = matmul(dropped(as_factor(exps), mask, self.rate, as_factor), gradient)  # (h, B, keys, D)
        grad_scores = dropped(matmul(v, gradient.swapaxes(-1, -2)), mask, self.rate)
        grad_scores -= shift[heads, :, :, queries]
        grad_scores *= exps  # (h, B, keys, queries)
        grad_scores = as_factor(grad_scores)
        of_q, of_k, of_v = into
        of_q.add(matmul(grad_scores.swapaxes(-1, -2), k), queries)
        of_k.add(matmul(grad_scores, q), keys)
        of_v.add(grad_v, keys)

    def scores(self, q, k, hidden):
        """Return the scores of a pair of tiles, keys by queries."""
        scores = self.policy.matmul(k, q.swapaxes(-1, -2))  # (h, B, keys, queries)
        if hidden is not None:
            scores += hidden
        return scores

    def kept(self, heads: slice, pair: Pair):
        """Return the mask of a pair's weights that dropout keeps, (h, B, keys, queries) bool; None for all."""
        i, _, j, _ = pair
        return self.keep and xp.stack([self.keep(h, i, j) for h in range(heads.start, heads.stop)])


def tiles_of(heads: slice, pair: Pair, q, k, v) -> Iterator:
    """Yield the pair's queries (h, B, queries, D), keys and values (h, B, keys, D), in some heads."""
    _, queries, _, keys = pair
    groups = key_heads_of(heads, q, k)
    return map(contiguous, (q[heads, :, queries], k[groups, :, keys], v[groups, :, keys]))


def contiguous(tile):
    """Return the tile without gaps: a BLAS may take another path for a tile that is part of a larger array."""
    if isinstance(tile, Packed):
        return Packed(xp.ascontiguousarray(tile.codes), tile.format)
    return xp.ascontiguousarray(tile)


def head_blocks(heads: int, batch: int, parts: list[slice]) -> list[slice]:
    """Return blocks of heads whose tiles are computed together. NumPy multiplies several matrices one by one."""
    largest = max(part.stop - part.start for part in parts)
    return cache_blocks(heads, max(1, CACHE // max(1, batch * largest**2)))


def scaled_queries(q, policy: Policy):
    """Scale queries so that their products with keys are scores in base 2."""
    return policy.rounded_factor(q * (q.shape[-1] ** -0.5 * LOG2E))


def begin_backward(output, gradient, totals, policy: Policy) -> tuple:
    """Return ``gradient`` (H, B, T, D) and ``shift`` (H, B, 1, T), as ``TileMath.add_gradients`` takes them.

    Softmax: dS = P (dP - sum over keys of P dP), and that sum equals the sum over D of output times gradient.
    """
    gradient = policy.rounded_factor(gradient / totals)  # now the weights before division may stand for softmax P
    return gradient, policy.kernels.dot_each(unpacked(gradient), unpacked(output))[:, :, None]


def end_backward(grad_q, grad_kv, shared: bool) -> tuple:
    """Return the gradients of ``qkv`` and ``kv``, from those of the products' factors, which change in place.

    Args:
        grad_q: (H, B, T, D)
        grad_kv: (2, G, B, T, D)
        shared: whether heads share keys and values.
    """
    grad_k, grad_v = grad_kv
    grad_q *= grad_q.shape[-1] ** -0.5
    grad_k *= log(2)  # the queries' factor has log2(e), which this takes back
    if shared:
        return grad_q, xp.concatenate((grad_k, grad_v), -1)
    return xp.concatenate((grad_q, grad_k, grad_v), -1), None


class TiledAttention(Function):
    """softmax(q k^T / sqrt(D)) v for each head, where a token attends to itself and the tokens before it.

    Args:
        qkv, kv, all_sum: see ``causal_attention``.
        math: the arithmetic on each pair of tiles, and the pairs to compute.
    """

    gradient_flops, recomputed_flops = (2.5,), 0.5  # five products for forward's two: the scores are computed again

    @staticmethod
    def flops(output, qkv, math: TileMath, kv, all_sum) -> int:
        return flops_of_pairs(output, math.mask.pairs())

    @staticmethod
    def forward(ctx: Context, qkv, math: TileMath, kv, all_sum):
        (heads, batch, length, _), mask, softmax = qkv.shape, math.mask, math.softmax
        q, k, v = queries_keys_values(qkv, kv)
        q = scaled_queries(q, ctx.policy)
        k, v = map(ctx.policy.factor, (k, v))
        output = xp.empty(q.shape, qkv.dtype)
        totals = xp.empty((heads, batch, length, 1), qkv.dtype)
        exponents = xp.empty((heads, batch, length, 1), softmax.EXPONENT)
        for h in head_blocks(heads, batch, mask.parts):
            for i, queries in enumerate(mask.parts):
                rows = softmax.OnlineSoftmax(output[h, :, queries].shape)  # of (h, B, queries, D)
                for pair in mask.pairs([(i, queries)]):
                    rows.merge(*math.attend(h, pair, q, k, v))
                output[h, :, queries], totals[h, :, queries] = rows.result(qkv.dtype)
                exponents[h, :, queries] = rows.exponent
        ctx.save_for_backward(q, k, v, output, exact=(totals, exponents))
        ctx.math, ctx.shared, ctx.all_sum = math, kv is not None, all_sum
        return output

    @staticmethod
    def backward(ctx: Context, gradient):
        q, k, v, output, totals, exponents = ctx.saved_factors
        math, per_group = ctx.math, len(q) // len(k)
        grad_q, grad_kv = xp.empty(q.shape, q.dtype), xp.empty((2, *k.shape), q.dtype)
        of_groups = online_softmax.Total(grad_kv.shape) if ctx.shared else None
        gradient, shift = begin_backward(output, gradient, totals, ctx.policy)
        for h in head_blocks(*q.shape[:2], parts=math.mask.parts):
            of_q, *of_kv = into = [math.softmax.Total(q[h].shape) for _ in "qkv"]
            for pair in math.mask.pairs():
                math.add_gradients(into, h, pair, q, k, v, exponents, gradient, shift)
            grad_q[h] = of_q.rounded(q.dtype)
            for i, total in enumerate(of_kv):
                if of_groups is None:
                    grad_kv[i, h] = total.rounded(q.dtype)
                else:
                    of_groups.at(i).add_heads(total, h, per_group)
        if of_groups is not None:
            grad_kv = ctx.all_sum(of_groups).rounded(q.dtype)
        grad_qkv, grad_kv = end_backward(grad_q, grad_kv, ctx.shared)
        return grad_qkv, None, grad_kv, None


def tiled_attention(
    qkv: Tensor,
    keep: Keep | None = None,
    rate: float = 0.0,
    documents: Documents | None = None,
    kv: Tensor | None = None,
    all_sum: Callable = identity,
    tile: int = 128,
    chunks: int = 1,
    softmax: str = "exact",
) -> Tensor:
    """Compute causal attention tile by tile: a token attends to itself and the tokens before it.

    Args:
        qkv, rate, documents, kv, all_sum: see ``causal_attention``.
        keep: (head, tile of queries, tile of keys) -> bool (B, keys, queries), the attention weights that dropout
            keeps; called in forward and again in backward. None keeps all.
        tile: number of queries, and of keys, in a tile.
        chunks: number of equal parts of the sequence, whose borders no tile crosses.
        softmax: one of SOFTMAXES.

    Returns:
        (H, B, T, D)
    """
    mask = TileMask(tiles(qkv.shape[-2], tile, chunks), documents)
    return TiledAttention.apply(qkv, TileMath(mask, keep, rate, SOFTMAXES[softmax], current()), kv, all_sum)
