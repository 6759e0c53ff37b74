"""The operations of a transformer, each forward right above its backward.

**Heads.** Everything that tensor parallelism can split has a leading axis H, one entry for each attention head: that
head's queries, keys and values, 1/H of the MLP's hidden units, 1/H of the vocabulary. Products are computed head by
head, so they have the same bits whether one process has all heads or each of several processes has some. Two
operations, conjugate to each other, lead into this axis and out of it again: ``copy_to_heads`` and
``reduce_from_heads``.

**Sums.** Sums over heads or tokens are taken in float64 and rounded once, so their order leaves no trace.

The functions to call are the ``apply`` of these classes, under torch's names: ``linear = Linear.apply``.
"""

from math import pi, sqrt

import numpy as np

from minidist.backend import cache_blocks, from_host, xp
from minidist.nn.kernels import add_at, fused, rounded, sum_over_tokens
from minidist.nn.tensor import Context, Function

CHUNK = 1 << 15  # elements, few enough to stay in the cache for a dozen passes


def sum_over_heads(heads):
    """Sum (H, ...) over the heads to (...), in float64 and not yet rounded.

    In a process with only some of the heads this is a partial sum: add the other processes' sums before rounding.
    """
    total = xp.empty(heads.shape[1:], xp.float64)
    _sum_over_heads(heads, len(heads), total)
    return total


@fused(
    "raw T heads, int64 count",
    "float64 total",
    """
    double sum = heads[i];  // _ind.size() is the number of results
    for (ptrdiff_t h = 1; h < count; ++h) sum += heads[h * _ind.size() + i];
    total = sum;
    """,
)
def _sum_over_heads(heads, count, total):
    total[...] = heads[0]
    for head in heads[1:]:
        total += head


class CopyToHeads(Function):
    """Broadcast of activations to all heads, (..., C) -> (H, ..., C). The heads' gradients add up.

    This is f of Megatron-LM (Shoeybi et al., 2019, section 3) between the heads of one process: the identity in
    forward, a sum in backward. Between processes ``copy_to_group`` all-reduces instead (parallel/tools/mappings.py).
    """

    kernel = False

    @staticmethod
    def forward(ctx: Context, x, heads):
        ctx.rounds = False  # the heads' gradients are terms of a sum
        return xp.broadcast_to(x, (heads, *x.shape))  # (H, ..., C), a view

    @staticmethod
    def backward(ctx: Context, gradient):
        return sum_over_heads(gradient), None  # (..., C) float64: rounded once, on arrival


copy_to_heads = CopyToHeads.apply


class ReduceFromHeads(Function):
    """Sum of the heads' outputs: (H, ..., C) -> (..., C), in float64, rounded once. Every head gets the same gradient.

    This is g of Megatron-LM, the conjugate of ``copy_to_heads``; between processes it is ``reduce_from_group``.
    ``dtype`` is the result's; None for that of ``y``. In a process with only some of the heads, float64 leaves the
    partial sum unrounded, so that the other processes' sums can be added.
    """

    kernel = False

    @staticmethod
    def forward(ctx: Context, y, dtype=None):
        ctx.heads, ctx.grad_dtype = len(y), y.dtype  # an unrounded sum need not have a float64 gradient
        return rounded(sum_over_heads(y), dtype or y.dtype)  # (..., C)

    @staticmethod
    def backward(ctx: Context, gradient):
        return xp.broadcast_to(gradient, (ctx.heads, *gradient.shape)), None  # (H, ..., C), a view


reduce_from_heads = ReduceFromHeads.apply


class Linear(Function):
    """``x @ weight + bias`` for each head, over all tokens of the micro-batch at once.

    Args:
        x: (H, ..., in)
        weight: (H, in, out), in the order of the product; PyTorch stores (out, in).
        bias: (H, out), or None.
        transposed: whether the weight is (H, out, in), as a tied embedding is.
        partial: whether the heads' outputs are terms of a sum; then none is rounded to 16 bits before the sum is.

    Returns:
        (H, ..., out)

    Raises:
        ValueError: if the numbers of heads or the widths do not match.
    """

    gradient_flops, factors = (1, 1), 2

    @staticmethod
    def flops(output, x, *rest) -> int:
        return 2 * output.size * x.shape[-1]

    @staticmethod
    def forward(ctx: Context, x, weight, bias=None, transposed=False, partial=False):
        heads, inputs = weight.shape[0], weight.shape[2 if transposed else 1]
        if x.shape[0] != heads or x.shape[-1] != inputs:
            raise ValueError(
                f"linear: x of shape {x.shape} does not fit a weight of shape {weight.shape}: "
                f"it needs {heads} heads along its first axis and {inputs} values along its last"
            )
        rows = x.reshape(heads, -1, inputs)  # (H, N, in)
        ctx.rounds, ctx.input_shape, ctx.transposed = not partial, x.shape, transposed
        ctx.save_for_backward(rows, weight)
        matrix = weight.swapaxes(1, 2) if transposed else weight  # (H, in, out)
        y = ctx.policy.matmul(ctx.policy.round_operand(rows), ctx.policy.round_operand(matrix))  # (H, N, out)
        if bias is not None:
            y += bias[:, None]
        return y.reshape(*x.shape[:-1], matrix.shape[2])  # (H, ..., out)

    @staticmethod
    def backward(ctx: Context, gradient):
        rows, weight = map(ctx.policy.round_operand, ctx.saved_factors)
        matrix = weight.swapaxes(1, 2) if ctx.transposed else weight
        grad_rows = ctx.policy.round_grad_operand(gradient.reshape(*rows.shape[:2], gradient.shape[-1]))  # (H, N, out)
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = ctx.policy.matmul(grad_rows, matrix.swapaxes(1, 2)).reshape(ctx.input_shape)
        if ctx.needs_input_grad[1]:
            grad_weight = ctx.policy.matmul(rows.swapaxes(1, 2), grad_rows)  # (H, in, out)
            grad_weight = grad_weight.swapaxes(1, 2) if ctx.transposed else grad_weight
        if any(ctx.needs_input_grad[2:]):  # there is a bias
            ones = ctx.policy.factor(xp.ones(rows.shape[1], gradient.dtype))
            grad_bias = ctx.policy.matmul(ones, grad_rows)  # (H, out): a sum within the grain
        return grad_x, grad_weight, grad_bias, None, None


linear = Linear.apply


class Gelu(Function):
    """GELU in its tanh form, as in GPT-2 (Hendrycks & Gimpel, 2016), for any shape.

    y = x (1 + tanh(u)) / 2 with u = sqrt(2/pi) (x + 0.044715 x^3), and its slope dy/dx = g + 2 y (1 - g) du/dx.

    Here g = (1 + tanh(u)) / 2. The slope is all that backward needs, and forward has computed most of it already.
    """

    @staticmethod
    def forward(ctx: Context, x):
        with_slope = ctx.needs_input_grad[0]
        constants = LINEAR, CUBIC, 2 * LINEAR, 6 * CUBIC
        if ctx.policy.functions is xp:
            y, slope = _gelu(x, with_slope, *constants)
        else:  # the same lines, also on a GPU
            y, slope = _gelu.__wrapped__(x, with_slope, *constants, tanh=ctx.policy.functions.tanh)
        ctx.save_for_backward(slope if with_slope else None)
        return y

    @staticmethod
    def backward(ctx: Context, gradient):
        (slope,) = ctx.saved_arrays
        return gradient * slope


gelu = Gelu.apply

LINEAR, CUBIC = sqrt(2 / pi), 0.044715 * sqrt(2 / pi)  # u = LINEAR x + CUBIC x^3


@fused(
    "T x, bool with_slope, T linear, T cubic, T linear2, T cubic6",
    "T y, T slope",
    """
    T square = x * x;
    T gate = (tanh((square * cubic + linear) * x) + 1) * (T)0.5;
    y = x * gate;
    slope = with_slope ? (square * cubic6 + linear2) * y * (1 - gate) + gate : gate;
    """,
)
def _gelu(x, with_slope, linear, cubic, linear2, cubic6, tanh=None):
    y = xp.empty(x.shape, x.dtype)
    slope = xp.empty(x.shape, x.dtype) if with_slope else None
    flat_x, flat_y = x.reshape(-1), y.reshape(-1)
    for part in cache_blocks(x.size, CHUNK):
        square = flat_x[part] * flat_x[part]
        gate = square * cubic
        gate += linear
        gate *= flat_x[part]  # u
        (tanh or xp.tanh)(gate, out=gate)
        gate += 1
        gate *= 0.5  # g
        xp.multiply(flat_x[part], gate, out=flat_y[part])
        if slope is not None:
            square *= cubic6
            square += linear2  # 2 du/dx
            square *= flat_y[part]
            square *= 1 - gate
            xp.add(square, gate, out=slope.reshape(-1)[part])
    return y, slope


class LayerNorm(Function):
    """Layer norm (Ba et al., 2016): each token's values at mean 0 and variance 1, then ``* gain + bias``.

    Args:
        x: (..., C); made C-contiguous, because NumPy would sum in another order otherwise.
        gain, bias: (C,)
        eps: added to the variance.
    """

    @staticmethod
    def forward(ctx: Context, x, gain, bias, eps=1e-5):
        x = xp.ascontiguousarray(x)
        width = x.shape[-1]
        kernels = ctx.policy.kernels
        centred = _centred(x, kernels.row_sums(x)[..., None], width)  # (..., C)
        inverse_std = _inverse_std(kernels.dot_each(centred, centred)[..., None], width, eps)  # (..., 1)
        normal, y = _normalized(centred, inverse_std, gain, bias)  # (..., C) each
        ctx.save_for_backward(normal, gain, exact=(inverse_std,))
        return y

    @staticmethod
    def backward(ctx: Context, gradient):
        normal, gain, inverse_std = ctx.saved_arrays
        gradient = xp.ascontiguousarray(gradient)
        width = gradient.shape[-1]
        grad_x = grad_gain = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_normal = gradient * gain  # (..., C)
            kernels = ctx.policy.kernels
            total = kernels.row_sums(grad_normal)[..., None]  # (..., 1)
            projection = kernels.dot_each(grad_normal, normal)[..., None]  # (..., 1)
            grad_x = _grad_of_normalized(grad_normal, total, projection, width, normal, inverse_std)
        if ctx.needs_input_grad[1]:
            grad_gain = sum_over_tokens(gradient * normal)
        if ctx.needs_input_grad[2]:
            grad_bias = sum_over_tokens(gradient)
        return grad_x, grad_gain, grad_bias, None


layer_norm = LayerNorm.apply


@fused("T x, T total, T width", "T centred", "centred = x - total / width;")
def _centred(x, total, width):
    return x - total / width


@fused("T squares, T width, T eps", "T inverse_std", "inverse_std = 1 / sqrt(squares / width + eps);")
def _inverse_std(squares, width, eps):
    return 1 / xp.sqrt(squares / width + eps)


@fused(
    "T centred, T inverse_std, T gain, T bias",
    "T normal, T y",
    "normal = centred * inverse_std; y = normal * gain + bias;",
)
def _normalized(centred, inverse_std, gain, bias):
    normal = centred
    normal *= inverse_std
    y = normal * gain
    y += bias
    return normal, y


@fused(
    "T grad_normal, T total, T projection, T width, T normal, T inverse_std",
    "T grad_x",
    "grad_x = (grad_normal - total / width - normal * (projection / width)) * inverse_std;",
)
def _grad_of_normalized(grad_normal, total, projection, width, normal, inverse_std):
    grad_x = grad_normal
    grad_x -= total / width
    grad_x -= normal * (projection / width)
    grad_x *= inverse_std
    return grad_x


def dropout_mask(generator: np.random.Generator, shape: tuple[int, ...], rate: float):
    """Return a bool array that is True where dropout keeps a value, each with probability 1 - rate."""
    return from_host(generator.random(shape, np.float32) >= rate)


class Dropout(Function):
    """``x`` where ``keep`` is True, scaled by 1 / (1 - rate); 0 elsewhere (Srivastava et al., 2014)."""

    @staticmethod
    def forward(ctx: Context, x, keep, rate):
        ctx.save_for_backward(keep)
        ctx.scale = 1 / (1 - rate)
        return x * keep * ctx.scale

    @staticmethod
    def backward(ctx: Context, gradient):
        (keep,) = ctx.saved_arrays
        return gradient * keep * ctx.scale, None, None


dropout = Dropout.apply


class Embedding(Function):
    """Look-up of the weight's row for each token.

    Args:
        weight: (H, V/H, C), the vocabulary in H consecutive parts.
        tokens: integers below V, of any shape (...).
        first: the token of the first row; 0 in a process with all heads.

    Returns:
        (..., C), zeros for tokens whose row is in another process.
    """

    @staticmethod
    def forward(ctx: Context, weight, tokens, first=0):
        rows = weight.reshape(-1, weight.shape[-1])  # (V, C): each head has consecutive rows of the vocabulary
        row = tokens.astype(xp.int64) - first  # (...)
        here = (row >= 0) & (row < len(rows))
        row = xp.where(here, row, 0)
        ctx.save_for_backward(row, here)
        ctx.weight_shape = weight.shape
        return xp.where(here[..., None], rows[row], 0)  # (..., C)

    @staticmethod
    def backward(ctx: Context, gradient):
        row, here = ctx.saved_arrays
        grad_weight = xp.zeros(ctx.weight_shape)  # float64: a token may occur many times
        grad_rows = grad_weight.reshape(-1, gradient.shape[-1])  # (V, C), a view
        add_at(grad_rows, row, xp.where(here[..., None], gradient, 0).astype(xp.float64))
        return grad_weight, None, None


embedding = Embedding.apply


class AddPositions(Function):
    """Sum of each token (B, T, C) and the row of ``weight`` (context, C) for its position.

    Args:
        first: position of the first token, or integers (B, T) in host memory, the position of each token.

    Raises:
        ValueError: if a position is beyond the context.
    """

    @staticmethod
    def forward(ctx: Context, x, weight, first=0):
        ctx.weight_shape = weight.shape
        if isinstance(first, np.ndarray):
            last, ctx.rows = first.max(initial=-1) + 1, from_host(first)
        else:
            last = first + x.shape[-2]
            ctx.rows = slice(first, last)
        if last > len(weight):
            raise ValueError(f"{last} tokens do not fit a context of {len(weight)}: pass fewer, or a longer context")
        return x + weight[ctx.rows]  # (B, T, C)

    @staticmethod
    def backward(ctx: Context, gradient):
        *_, length, width = gradient.shape
        grad_weight = xp.zeros(ctx.weight_shape)
        if not isinstance(ctx.rows, slice):
            add_at(grad_weight, ctx.rows, gradient.astype(xp.float64))
            return gradient, grad_weight, None
        grad_weight[ctx.rows] = gradient.reshape(-1, length, width).sum(axis=0, dtype=xp.float64)
        return gradient, grad_weight, None


add_positions = AddPositions.apply
