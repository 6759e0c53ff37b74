"""Cross-entropy on a vocabulary that is divided among the heads, without joining the logits.

Only three numbers per token cross the heads: the largest logit (exact in any order), the sum of the exponentials, and
the target's logit (both summed in float64). So the heads may be in several processes, which exchange these three
numbers and no logits. Megatron-LM calls this ``vocab_parallel_cross_entropy``.

A target may be ignored: padding, or the words of a prompt. A step then minimises the sum over the targets that count,
divided by their number in the *global* batch. Dividing by their number in one micro-batch, on one rank or in one chunk
gives another loss, which weights a token by how many others are with it (torchtitan #2206, and gradient accumulation in
transformers until October 2024). So each micro-batch divides its sum by its places, B T, the same for all, and the step
divides once by the missing factor (``ParallelModel.count_targets``).
"""

from collections.abc import Callable, Iterable
from typing import Any

from minidist.backend import on_host, xp
from minidist.nn.functional import sum_over_heads
from minidist.nn.kernels import rounded
from minidist.nn.tensor import Context, Function, Tensor


def mask_padding(logits, vocab: int, first: int = 0):
    """Return logits with -inf for the padding of the vocabulary; the same array if there is no padding.

    Args:
        logits: (H, N, V/H)
        vocab: the number of real tokens.
        first: the token of the first head's first column.
    """
    heads, _, width = logits.shape
    if first + heads * width <= vocab:
        return logits
    tokens = first + xp.arange(heads * width).reshape(heads, 1, width)  # (H, 1, V/H)
    return xp.where(tokens < vocab, logits, -xp.inf)


def identity(value):
    """Return a partial result as it is: in a process that has all parts it is complete."""
    return value


class CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Context, logits, targets, vocab, first, all_max, all_sum):
        heads, *_, width = logits.shape
        rows = mask_padding(logits.reshape(heads, -1, width), vocab, first)  # (H, N, V/H)
        count = rows.shape[1]
        offset = targets.reshape(-1).astype(xp.int64) - first  # (N,) from the first head's first column
        offset = xp.where(offset < heads * width, xp.maximum(offset, -1), -1)  # -1 where the target is in other heads:
        head, column = xp.divmod(offset, width)  # there the head is -1, too
        token = xp.arange(count)

        largest = all_max(rows.max(axis=0).max(axis=-1))  # (N,)
        exps = rows - largest[:, None]
        ctx.policy.functions.exp(exps, out=exps)  # (H, N, V/H)
        total = rounded(all_sum(sum_over_heads(ctx.policy.kernels.row_sums(exps))), rows.dtype)  # (N,)
        at_target = xp.where(head >= 0, rows[head, token, column], 0).astype(xp.float64)
        losses = ctx.policy.functions.log(total) + largest - all_sum(at_target).astype(rows.dtype)  # (N,)

        if ctx.needs_input_grad[0]:
            exps /= total[:, None]  # the probabilities
        ctx.save_for_backward(head, token, column, exact=(exps,))  # always float32, as the loss is
        ctx.rounds = False
        ctx.logits_shape = logits.shape
        return rounded(losses.sum(dtype=xp.float64) / count, rows.dtype)

    @staticmethod
    def backward(ctx: Context, gradient):
        head, token, column, probabilities = ctx.saved_arrays
        share = gradient / probabilities.shape[1]  # one token's share of the mean
        grad_logits = probabilities * share  # (H, N, V/H)
        grad_logits[head, token, column] -= xp.where(head >= 0, share, 0)
        return grad_logits.reshape(ctx.logits_shape), None, None, None, None, None


def cross_entropy(logits: Tensor, targets, vocab: int, first: int = 0, all_max=identity, all_sum=identity) -> Tensor:
    """Return the mean of -log(probability of the target) over all tokens, from logits divided among the heads.

    Args:
        logits: (H, ..., V/H); columns from ``vocab`` on are padding, with probability 0.
        targets: integers below ``vocab``, of shape (...).
        vocab: the number of real tokens.
        first: the token of the first head's first column; 0 in a process with all heads.
        all_max, all_sum: functions that join a maximum (N,), or a float64 sum (N,), with those of the processes that
            have the other heads. A process with all heads needs neither.

    Returns:
        A scalar of the logits' dtype; the tokens' losses are summed in float64 and rounded once.

    Raises:
        ValueError: if the shapes do not match, there are no targets, or one is not an integer from 0 to ``vocab - 1``
            (values on a GPU are not checked).
    """
    if logits.shape[1:-1] != targets.shape:
        raise ValueError(f"cross_entropy: targets of shape {targets.shape} do not fit logits of shape {logits.shape}")
    if all_sum is identity and logits.shape[0] * logits.shape[-1] < vocab:
        raise ValueError(
            f"cross_entropy: only {logits.shape[0] * logits.shape[-1]} of {vocab} logits of a token are in this process"
        )
    if targets.dtype.kind not in "iu":
        raise ValueError(f"cross_entropy: targets must be integers, not {targets.dtype}")
    if targets.size == 0 or (on_host(targets) and (targets.min() < 0 or targets.max() >= vocab)):
        raise ValueError(f"cross_entropy needs at least one target, and all from 0 to {vocab - 1}")
    return CrossEntropy.apply(logits, targets, vocab, first, all_max, all_sum)


IGNORED = -100  # a target that does not count, like ``ignore_index`` of torch's cross_entropy


class TakeCounted(Function):
    """Selection of N tokens' logits: (H, B, T, V/H) -> (H, 1, N, V/H)."""

    @staticmethod
    def forward(ctx: Context, logits, counted):
        ctx.counted, ctx.input_shape, ctx.rounds = counted, logits.shape, False
        return logits.reshape(len(logits), -1, logits.shape[-1])[:, None, counted]

    @staticmethod
    def backward(ctx: Context, gradient):
        grad_logits = xp.zeros(ctx.input_shape, gradient.dtype)
        grad_logits.reshape(len(gradient), -1, gradient.shape[-1])[:, ctx.counted] = gradient[:, 0]
        return grad_logits, None


class WeightedSum(Function):
    """Weighted sum of scalars, added in float64."""

    @staticmethod
    def forward(ctx: Context, weights: list[float], *means):
        ctx.weights, ctx.rounds = weights, False  # the loss is exact in every precision
        return sum((mean * weight).astype(xp.float64) for mean, weight in zip(means, weights, strict=True))

    @staticmethod
    def backward(ctx: Context, gradient):
        return None, *[gradient * weight for weight in ctx.weights]


def mean_over_places(mean_loss: Callable, parts: Iterable[tuple[Tensor, Any]], places: int) -> Tensor:
    """Return the sum of the losses of the targets that count, divided by ``places``: a scalar.

    It is float64 and not rounded, since others are added to it, unless one part has all places and all count.

    Args:
        mean_loss: function of logits and targets, as ``cross_entropy``.
        parts: logits (H, B, t, V/H) and targets (B, t) of each sequence chunk here.
        places: B T, the number of places in all chunks, whether or not they count.
    """
    means, weights = [], []
    for logits, targets in parts:
        if targets.dtype.kind == "i" and (ignored := targets == IGNORED).any():
            counted = xp.flatnonzero(~ignored)
            logits, targets = TakeCounted.apply(logits, counted), targets.reshape(-1)[None, counted]
        means.append(mean_loss(logits, targets) if targets.size else logits.sum())
        weights.append(targets.size / max(1, places))
    return means[0] if weights == [1.0] else WeightedSum.apply(weights, *means)
