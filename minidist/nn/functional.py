"""The operations of a transformer, each forward right above its backward.

**Head blocks.** Whatever tensor parallelism can split has a leading axis of H blocks, one for each attention head: the
queries, keys and values of that head, 1/H of the MLP's hidden units, 1/H of the vocabulary. A product is taken block by
block, so it has the same bits whether one process holds all the blocks or each of several holds some of them. Two
operations, conjugate to each other, lead into the blocks and out of them again: ``copy_to_heads`` and
``reduce_from_heads``.

**Sums.** What is summed across blocks, or across tokens, is summed in float64 and rounded once. The order then leaves
no trace in the result.
"""

from math import pi, sqrt

import numpy as np

from minidist.backend import add_at, from_host, xp
from minidist.nn.rounding import rounded
from minidist.nn.tensor import Context, Function, Tensor

CHUNK = 1 << 15  # elements that a dozen passes go over while the cache holds them


def sum_over_heads(blocks):
    """Sum (H, ...) over its blocks to (...), in float64 and not yet rounded.

    Of some of the blocks, this is a partial sum: to be added to the others' before it is rounded.
    """
    total = blocks[0].astype(xp.float64, order="C")
    for block in blocks[1:]:
        total += block
    return total


def sum_over_tokens(values):
    """Sum (..., C) over all axes but the last to (C,), in float64: a parameter's gradient, one term from each token."""
    return values.reshape(-1, values.shape[-1]).sum(axis=0, dtype=xp.float64)


class CopyToHeads(Function):
    """Megatron-LM's f: the same activations go into every block, and the blocks' gradients add up."""

    @staticmethod
    def forward(ctx: Context, x, blocks):
        ctx.rounds = False  # the blocks' gradients are terms of a sum
        return xp.broadcast_to(x, (blocks, *x.shape))  # (H, ..., C), a view

    @staticmethod
    def backward(ctx: Context, gradient):
        return sum_over_heads(gradient), None  # (..., C) float64: rounded by whoever gets it, once


class ReduceFromHeads(Function):
    """Megatron-LM's g: the blocks' outputs add up, and the same gradient goes into every block."""

    @staticmethod
    def forward(ctx: Context, y, dtype):
        ctx.blocks, ctx.grad_dtype = len(y), y.dtype  # an unrounded sum's gradient need not be float64 as well
        return rounded(sum_over_heads(y), dtype or y.dtype)  # (..., C)

    @staticmethod
    def backward(ctx: Context, gradient):
        return xp.broadcast_to(gradient, (ctx.blocks, *gradient.shape)), None  # (H, ..., C), a view


class Linear(Function):
    """A product for each block, on all the tokens of the micro-batch at once."""

    gradient_flops = 1, 1

    @staticmethod
    def flops(output, x, *rest) -> int:
        return 2 * output.size * x.shape[-1]

    @staticmethod
    def forward(ctx: Context, x, weight, bias, transposed, partial):
        blocks, inputs = weight.shape[0], weight.shape[2 if transposed else 1]
        if x.shape[0] != blocks or x.shape[-1] != inputs:
            raise ValueError(
                f"linear: x of shape {x.shape} does not fit a weight of shape {weight.shape}: "
                f"it needs {blocks} blocks along its first axis and {inputs} values along its last"
            )
        rows = x.reshape(blocks, -1, inputs)  # (H, N, in)
        ctx.rounds, ctx.input_shape, ctx.transposed = not partial, x.shape, transposed
        ctx.save_for_backward(rows, weight)
        matrix = weight.swapaxes(1, 2) if transposed else weight  # (H, in, out)
        y = ctx.policy.round_operand(rows) @ ctx.policy.round_operand(matrix)  # (H, N, out)
        if bias is not None:
            y += bias[:, None]
        return y.reshape(*x.shape[:-1], matrix.shape[2])  # (H, ..., out)

    @staticmethod
    def backward(ctx: Context, gradient):
        rows, weight = map(ctx.policy.round_operand, ctx.saved_arrays)
        matrix = weight.swapaxes(1, 2) if ctx.transposed else weight
        grad_rows = ctx.policy.round_grad_operand(gradient.reshape(*rows.shape[:2], -1))  # (H, N, out)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = (grad_rows @ matrix.swapaxes(1, 2)).reshape(ctx.input_shape)
        if ctx.needs_input_grad[1]:
            grad_weight = rows.swapaxes(1, 2) @ grad_rows  # (H, in, out)
            grad_weight = grad_weight.swapaxes(1, 2) if ctx.transposed else grad_weight
        if ctx.needs_input_grad[2]:
            grad_bias = xp.ones(rows.shape[1], gradient.dtype) @ grad_rows  # (H, out): a sum within the grain
        return grad_x, grad_weight, grad_bias, None, None


class Gelu(Function):
    """y = x (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), and its slope dy/dx = g + 2 y (1 - g) du/dx.

    Here g = (1 + tanh(u)) / 2. The slope is all that backward needs, and forward has most of it at hand.
    """

    @staticmethod
    def forward(ctx: Context, x):
        linear = sqrt(2 / pi)
        cubic = 0.044715 * linear
        y = xp.empty(x.shape, x.dtype)
        slope = xp.empty(x.shape, x.dtype) if ctx.needs_input_grad[0] else None
        flat_x, flat_y = x.reshape(-1), y.reshape(-1)
        for start in range(0, x.size, CHUNK):
            part = slice(start, start + CHUNK)
            square = flat_x[part] * flat_x[part]
            gate = square * cubic
            gate += linear
            gate *= flat_x[part]  # u
            xp.tanh(gate, out=gate)
            gate += 1
            gate *= 0.5  # g
            xp.multiply(flat_x[part], gate, out=flat_y[part])
            if slope is not None:
                square *= 6 * cubic
                square += 2 * linear  # 2 du/dx
                square *= flat_y[part]
                square *= 1 - gate
                xp.add(square, gate, out=slope.reshape(-1)[part])
        ctx.save_for_backward(slope)
        return y

    @staticmethod
    def backward(ctx: Context, gradient):
        (slope,) = ctx.saved_arrays
        return gradient * slope


class LayerNorm(Function):
    @staticmethod
    def forward(ctx: Context, x, gain, bias, eps):
        x = xp.ascontiguousarray(x)  # a sum over the last axis has other bits in another order
        width = x.shape[-1]
        centred = x - x.sum(axis=-1, keepdims=True) / width
        variance = xp.einsum("...c,...c->...", centred, centred)[..., None] / width  # (..., 1)
        inverse_std = 1 / xp.sqrt(variance + eps)
        normal = centred
        normal *= inverse_std  # (..., C)
        ctx.save_for_backward(normal, gain, exact=(inverse_std,))
        y = normal * gain
        y += bias
        return y

    @staticmethod
    def backward(ctx: Context, gradient):
        normal, gain, inverse_std = ctx.saved_arrays
        gradient = xp.ascontiguousarray(gradient)
        width = gradient.shape[-1]
        grad_x = grad_gain = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_normal = gradient * gain  # (..., C)
            mean = grad_normal.sum(axis=-1, keepdims=True) / width  # (..., 1)
            projection = xp.einsum("...c,...c->...", grad_normal, normal)[..., None] / width  # (..., 1)
            grad_x = grad_normal
            grad_x -= mean
            grad_x -= normal * projection
            grad_x *= inverse_std
        if ctx.needs_input_grad[1]:
            grad_gain = sum_over_tokens(gradient * normal)
        if ctx.needs_input_grad[2]:
            grad_bias = sum_over_tokens(gradient)
        return grad_x, grad_gain, grad_bias, None


class CausalAttention(Function):
    """softmax(q k^T / sqrt(D)) v, where a token sees itself and those before it; one head in each block.

    Scores are held as keys by queries, the transpose of the usual: softmax then runs over the leading one of the two
    axes, where NumPy's reductions and broadcasts are faster. The softmax's division is left to the output, which is
    smaller, as in FlashAttention. That never holds (T, T) scores at all; here their exponentials are saved.

    In 16 bits the factors of all products are rounded; scores, exponentials and their sums are float32.
    """

    gradient_flops = (2,)

    @staticmethod
    def flops(output, qkv, *rest) -> int:
        return 2 * 2 * output.size * qkv.shape[-2]

    @staticmethod
    def forward(ctx: Context, qkv, keep, rate):
        blocks, batch, length, _ = qkv.shape
        cast = ctx.policy.round
        q, k, v = xp.split(qkv, 3, axis=-1)  # (H, B, T, D) each, views
        q = cast(q * q.shape[-1] ** -0.5)  # scaled here, where there are fewer numbers than in the scores
        hidden = xp.tril(xp.full((length, length), -xp.inf, qkv.dtype), -1)  # (T, T): -inf where the key comes later

        exps = xp.empty((blocks, batch, length, length), qkv.dtype)
        totals = xp.empty((blocks, batch, length, 1), qkv.dtype)
        output = xp.empty(v.shape, qkv.dtype)
        for h in range(blocks):  # several passes over one head's scores at a time, which the cache holds
            scores = xp.matmul(k[h], q[h].swapaxes(-1, -2), out=exps[h])  # (B, keys, queries)
            scores += hidden
            scores -= scores.max(axis=-2, keepdims=True)
            xp.exp(scores, out=scores)
            totals[h] = scores.sum(axis=-2)[..., None]  # (B, T, 1)
            weights = _dropped(cast(scores), keep, h, rate, cast)
            xp.matmul(weights.swapaxes(-1, -2), v[h], out=output[h])  # (B, T, D)
        output /= totals
        ctx.save_for_backward(q, k, v, exps, output, keep, exact=(totals,))
        ctx.rate = rate
        return output

    @staticmethod
    def backward(ctx: Context, gradient):
        q, k, v, exps, output, keep, totals = ctx.saved_arrays
        cast = ctx.policy.round
        grad_qkv = xp.empty((*q.shape[:-1], 3 * q.shape[-1]), q.dtype)
        grad_q, grad_k, grad_v = xp.split(grad_qkv, 3, axis=-1)  # views: what fills them fills grad_qkv
        gradient = cast(gradient / totals)  # (H, B, T, D): so that exps may stand for softmax P = exps / totals
        # Softmax: dS = P (dP - sum over keys of P dP), and that sum is also the one over D of output times gradient.
        shift = xp.einsum("hbtd,hbtd->hbt", gradient, output)[:, :, None]  # (H, B, 1, queries)
        for h in range(len(q)):
            xp.matmul(_dropped(exps[h], keep, h, ctx.rate, cast), gradient[h], out=grad_v[h])
            grad_scores = _dropped(v[h] @ gradient[h].swapaxes(-1, -2), keep, h, ctx.rate)  # (B, keys, queries)
            grad_scores -= shift[h]
            grad_scores *= exps[h]
            grad_scores = cast(grad_scores)
            xp.matmul(grad_scores.swapaxes(-1, -2), k[h], out=grad_q[h])
            xp.matmul(grad_scores, q[h], out=grad_k[h])
        grad_q *= q.shape[-1] ** -0.5
        return grad_qkv, None, None


def _dropped(values, keep, block: int, rate: float, cast=lambda dropped: dropped):
    """``values`` of one block after dropout, and after ``cast``: unchanged where there is no dropout."""
    return values if keep is None else cast(values * keep[block] * (1 / (1 - rate)))


class Dropout(Function):
    @staticmethod
    def forward(ctx: Context, x, keep, rate):
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - rate)
        return x * keep * ctx.scale

    @staticmethod
    def backward(ctx: Context, gradient):
        (keep,) = ctx.saved_arrays
        return gradient * keep * ctx.scale, None, None


class Embedding(Function):
    @staticmethod
    def forward(ctx: Context, weight, tokens, first):
        rows = weight.reshape(-1, weight.shape[-1])  # (V, C): the blocks are consecutive parts of the vocabulary
        ctx.save_for_backward(tokens)
        ctx.weight_shape, ctx.first = weight.shape, first
        row, here = _rows_here(tokens, first, len(rows))
        output = xp.zeros((*tokens.shape, rows.shape[1]), rows.dtype)  # (..., C)
        output[here] = rows[row]
        return output

    @staticmethod
    def backward(ctx: Context, gradient):
        (tokens,) = ctx.saved_arrays
        grad_weight = xp.zeros(ctx.weight_shape)  # float64: a token may occur many times
        grad_rows = grad_weight.reshape(-1, gradient.shape[-1])  # (V, C), a view
        row, here = _rows_here(tokens, ctx.first, len(grad_rows))
        add_at(grad_rows, row, gradient[here].astype(xp.float64))
        return grad_weight, None, None


def _rows_here(tokens, first: int, count: int):
    """Which tokens, (...) bool, are among the ``count`` from ``first`` on; and the rows of those that are, in order."""
    row = tokens.astype(xp.int64) - first
    here = (row >= 0) & (row < count)
    return row[here], here


class AddPositions(Function):
    @staticmethod
    def forward(ctx: Context, x, weight):
        length = x.shape[-2]
        if length > len(weight):
            raise ValueError(f"{length} tokens do not fit a context of {len(weight)}: pass fewer, or a longer context")
        ctx.weight_shape = weight.shape
        return x + weight[:length]  # (B, T, C)

    @staticmethod
    def backward(ctx: Context, gradient):
        *_, length, width = gradient.shape
        grad_weight = xp.zeros(ctx.weight_shape)
        grad_weight[:length] = gradient.reshape(-1, length, width).sum(axis=0, dtype=xp.float64)
        return gradient, grad_weight


def copy_to_heads(x: Tensor, blocks: int) -> Tensor:
    """Show the same activations to every head block: (..., C) -> (H, ..., C).

    Backward sums the blocks' gradients. This is f of Megatron-LM (Shoeybi et al., 2019, section 3), there the identity
    forward and an all-reduce backward (``copy_to_tensor_model_parallel_region``); here the blocks are in one process.
    """
    return CopyToHeads.apply(x, blocks)


def reduce_from_heads(y: Tensor, dtype=None) -> Tensor:
    """Sum the outputs of the head blocks: (H, ..., C) -> (..., C), in float64, rounded once.

    Backward shows the same gradient to every block. This is g of Megatron-LM, the conjugate of ``copy_to_heads``
    (``reduce_from_tensor_model_parallel_region``).

    Args:
        dtype: of the result; None for that of ``y``. Of some of the blocks float64 leaves the partial sum unrounded,
            for whoever adds the others' to it.
    """
    return ReduceFromHeads.apply(y, dtype)


def linear(
    x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False, partial: bool = False
) -> Tensor:
    """``x @ weight + bias`` for each head block.

    Args:
        x: (H, ..., in)
        weight: (H, in, out). PyTorch keeps a weight as (out, in); here it stands in the order of the product.
        bias: (H, out), or None.
        transposed: the weight is (H, out, in), as a tied embedding is.
        partial: the blocks' outputs are terms of a sum, so that none is rounded to 16 bits before the sum is.

    Returns:
        (H, ..., out)

    Raises:
        ValueError: if the blocks or the widths do not match.
    """
    return Linear.apply(x, weight, bias, transposed, partial)


def gelu(x: Tensor) -> Tensor:
    """The GELU in its tanh form, as in GPT-2 (Hendrycks & Gimpel, 2016): (H, ...) -> (H, ...)."""
    return Gelu.apply(x)


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    """Each token's values shifted to mean 0 and scaled to variance 1, then ``* gain + bias`` (Ba et al., 2016).

    Args:
        x: (..., C), in C order: NumPy's sum over the last axis takes another order otherwise.
        gain, bias: (C,)
        eps: added to the variance.
    """
    return LayerNorm.apply(x, gain, bias, eps)


def causal_attention(qkv: Tensor, keep=None, rate: float = 0.0) -> Tensor:
    """Attention of each head over the token itself and those before it.

    Args:
        qkv: (H, B, T, 3 D), each head's queries, keys and values side by side.
        keep: (H, B, T, T) bool, keys by queries: the attention weights that dropout keeps; None drops none.
        rate: the share that was dropped; what is kept is scaled by 1 / (1 - rate).

    Returns:
        (H, B, T, D)
    """
    return CausalAttention.apply(qkv, keep, rate)


def dropout_mask(generator: np.random.Generator, shape: tuple[int, ...], rate: float):
    """A bool array, True where dropout keeps the value: each with probability 1 - rate."""
    return from_host(generator.random(shape, np.float32) >= rate)


def dropout(x: Tensor, keep, rate: float) -> Tensor:
    """``x`` where ``keep`` is True, scaled by 1 / (1 - rate); 0 elsewhere (Srivastava et al., 2014)."""
    return Dropout.apply(x, keep, rate)


def embedding(weight: Tensor, tokens, first: int = 0) -> Tensor:
    """The weight's row for each token.

    Args:
        weight: (H, V/H, C), the vocabulary in H consecutive parts.
        tokens: integers below V, of any shape (...).
        first: the token that the first row stands for. 0 where all the blocks are here.

    Returns:
        (..., C), zeros for the tokens that the blocks here have no row of.
    """
    return Embedding.apply(weight, tokens, first)


def add_positions(x: Tensor, weight: Tensor) -> Tensor:
    """Add to each token (B, T, C) the row of ``weight`` (context, C) for its position.

    Raises:
        ValueError: if T is greater than the context.
    """
    return AddPositions.apply(x, weight)
