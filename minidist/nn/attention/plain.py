"""Attention that holds the scores of all queries and keys, T x T numbers for each head."""

from minidist.backend import cache_blocks, from_host, xp
from minidist.nn.attention.online_softmax import Total
from minidist.nn.documents import Documents, hidden_keys
from minidist.nn.loss import identity
from minidist.nn.precision.policy import unpacked
from minidist.nn.tensor import Context, Function


class CausalAttention(Function):
    """softmax(q k^T / sqrt(D)) v for each head, where a token attends to itself and the tokens before it.

    Args:
        qkv: (H, B, T, 3 D), each head's queries, keys and values side by side; with ``kv`` only queries, (H, B, T, D).
        keep: (H, B, T, T) bool, keys by queries: the attention weights that dropout keeps; None keeps all.
        rate: the dropout probability; kept weights are scaled by 1 / (1 - rate).
        documents: where each token's document begins; a token sees only its own. None for one document.
        kv: (G, B, T, 2 D), keys and values that H / G consecutive heads share; their gradients add up.
        all_sum: function that adds to these keys' and values' gradients, a ``Total``, those of the processes that
            share them.

    Returns:
        (H, B, T, D)

    Scores are stored as keys by queries, the transpose of the usual order: softmax then runs over the first of the two
    axes, where NumPy's reductions and broadcasts are faster. As in FlashAttention the output is divided, not the
    weights, because it is smaller. FlashAttention never holds the (T, T) scores; here their exponentials are saved.

    In 16 bits the operands of all products are rounded; scores, exponentials and their sums are float32.
    """

    gradient_flops = (2,)

    @staticmethod
    def flops(output, *rest) -> int:
        return 2 * 2 * output.size * output.shape[-2]

    @staticmethod
    def forward(ctx: Context, qkv, keep=None, rate=0.0, documents=None, kv=None, all_sum=identity):
        heads, batch, length, _ = qkv.shape
        as_factor, matmul = ctx.policy.rounded_factor, ctx.policy.matmul
        q, k, v = xp.split(qkv, 3, axis=-1) if kv is None else queries_keys_values(qkv, kv)
        q = as_factor(q * q.shape[-1] ** -0.5)  # scaled here: q has fewer numbers than the scores
        k, v = map(ctx.policy.factor, (k, v))
        hidden = xp.tril(xp.full((length, length), -xp.inf, qkv.dtype), -1)  # (T, T): -inf where the key comes later
        if documents is not None:
            hidden = outside(documents, length, qkv.dtype)  # (B, T, T)

        exps = xp.empty((heads, batch, length, length), qkv.dtype)
        totals = xp.empty((heads, batch, length, 1), qkv.dtype)
        output = xp.empty(q.shape, qkv.dtype)
        for h in cache_blocks(heads, 1):  # a CPU takes one by one: its scores stay in the cache for several passes
            g = h if kv is None else key_heads_of(h, q, k)
            scores = matmul(k[g], q[h].swapaxes(-1, -2), out=exps[h])  # (h, B, keys, queries)
            scores += hidden
            scores -= scores.max(axis=-2, keepdims=True)
            ctx.policy.functions.exp(scores, out=scores)
            totals[h] = ctx.policy.kernels.column_sums(scores)[..., None]  # (h, B, T, 1)
            weights = dropped(as_factor(scores), None if keep is None else keep[h], rate, as_factor)
            ctx.policy.mix(weights.swapaxes(-1, -2), v[g], out=output[h])  # (h, B, T, D)
        output /= totals
        ctx.save_for_backward(q, k, v, exps, output, keep, exact=(totals,))
        ctx.rate, ctx.shared, ctx.all_sum = rate, kv is not None, all_sum
        return output

    @staticmethod
    def backward(ctx: Context, gradient):
        q, k, v, exps, output, keep, totals = ctx.saved_factors
        as_factor, matmul = ctx.policy.rounded_factor, ctx.policy.matmul
        grad_qkv = xp.empty((*q.shape[:-1], 3 * q.shape[-1]), q.dtype)
        grad_q, grad_k, grad_v = xp.split(grad_qkv, 3, axis=-1)  # views into grad_qkv
        gradient = as_factor(gradient / totals)  # (H, B, T, D): now exps may stand for softmax P = exps / totals
        # Softmax: dS = P (dP - sum over keys of P dP), and that sum equals the sum over D of output times gradient.
        shift = ctx.policy.kernels.dot_each(unpacked(gradient), unpacked(output))[:, :, None]  # (H, B, 1, queries)
        for h in cache_blocks(len(q), 1):
            kept, g = None if keep is None else keep[h], key_heads_of(h, q, k) if ctx.shared else h
            matmul(dropped(exps[h], kept, ctx.rate, as_factor), gradient[h], out=grad_v[h])
            grad_scores = dropped(matmul(v[g], gradient[h].swapaxes(-1, -2)), kept, ctx.rate)  # (h, B, keys, queries)
            grad_scores -= shift[h]
            grad_scores *= unpacked(exps[h])
            grad_scores = as_factor(grad_scores)
            matmul(grad_scores.swapaxes(-1, -2), k[g], out=grad_q[h])
            matmul(grad_scores, q[h], out=grad_k[h])
        grad_q *= q.shape[-1] ** -0.5
        if not ctx.shared:
            return grad_qkv, None, None, None, None, None
        grad_kv = Total((len(k), *grad_qkv.shape[1:-1], 2 * q.shape[-1]))  # of the groups
        grad_kv.add_heads(Total.of([grad_qkv[..., q.shape[-1] :]]), slice(0, len(q)), len(q) // len(k))
        return grad_q, None, None, None, ctx.all_sum(grad_kv).rounded(q.dtype), None


causal_attention = CausalAttention.apply


def outside(documents: Documents, length: int, dtype):
    """Return the mask to add to the scores, keys by queries: -inf where a query does not see a key, 0 elsewhere."""
    every = slice(0, length)
    return xp.where(from_host(hidden_keys(documents.first, every, every)), -xp.inf, 0).astype(dtype)  # (B, T, T)


def queries_keys_values(qkv, kv) -> list:
    """Return queries (H, B, T, D), keys and values (G, B, T, D): views of ``qkv``, or with ``kv`` without gaps."""
    return xp.split(qkv, 3, axis=-1) if kv is None else [qkv, *map(xp.ascontiguousarray, xp.split(kv, 2, axis=-1))]


def key_heads_of(heads: slice, q, k):
    """Return the index of the keys that some heads read, of G keys for H heads: a slice, or integers (h,)."""
    share = len(q) // len(k)
    return heads if share == 1 else xp.arange(heads.start, heads.stop) // share


def dropped(values, keep, rate: float, cast=lambda result: result):
    """Apply dropout by a mask of the values' shape, then ``cast``; without a mask return ``values`` unchanged."""
    return values if keep is None else cast(unpacked(values) * keep * (1 / (1 - rate)))
