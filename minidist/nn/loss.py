"""Cross-entropy on a vocabulary that lies in blocks, without ever joining them.

What crosses the blocks is small, one number for each token: the largest logit (exact in any order), the sum of the
exponentials, and the target's logit (both added in float64). So the blocks may also lie in several processes, which
then join those three numbers and no logits. Megatron-LM calls that ``vocab_parallel_cross_entropy``.
"""

from minidist.backend import xp
from minidist.nn.functional import sum_over_heads
from minidist.nn.rounding import rounded
from minidist.nn.tensor import Context, Function, Tensor


def mask_padding(logits, vocab: int, first: int = 0):
    """Logits with -inf at the tokens that only fill up the blocks; the same array if there are none.

    Args:
        logits: (H, N, V/H)
        vocab: the number of real tokens.
        first: the token that the first column of the first block stands for.
    """
    blocks, _, width = logits.shape
    if first + blocks * width <= vocab:
        return logits
    tokens = first + xp.arange(blocks * width).reshape(blocks, 1, width)  # (H, 1, V/H)
    return xp.where(tokens < vocab, logits, -xp.inf)


def identity(value):
    """What joins partial results when there are no others."""
    return value


class CrossEntropy(Function):
    @staticmethod
    def forward(ctx: Context, logits, targets, vocab, first, all_max, all_sum):
        blocks, *_, width = logits.shape
        rows = mask_padding(logits.reshape(blocks, -1, width), vocab, first)  # (H, N, V/H)
        count = rows.shape[1]
        offset = targets.reshape(-1).astype(xp.int64) - first  # (N,) from the first column of the first block
        (token,) = xp.nonzero((offset >= 0) & (offset < blocks * width))  # the tokens whose target is in these blocks,
        block, column = xp.divmod(offset[token], width)  # and where it is

        largest = all_max(rows.max(axis=0).max(axis=-1))  # (N,)
        exps = rows - largest[:, None]
        xp.exp(exps, out=exps)  # (H, N, V/H)
        total = rounded(all_sum(sum_over_heads(exps.sum(axis=-1))), rows.dtype)  # (N,)
        at_target = xp.zeros(count)
        at_target[token] = rows[block, token, column]
        losses = xp.log(total) + largest - all_sum(at_target).astype(rows.dtype)  # (N,)

        if ctx.needs_input_grad[0]:
            exps /= total[:, None]  # the probabilities
        ctx.save_for_backward(block, token, column, exact=(exps,))  # in float32 all through, as is the loss
        ctx.rounds = False
        ctx.logits_shape = logits.shape
        return (losses.sum(dtype=xp.float64) / count).astype(rows.dtype)

    @staticmethod
    def backward(ctx: Context, gradient):
        block, token, column, probabilities = ctx.saved_arrays
        share = gradient / probabilities.shape[1]  # of one token in the mean
        grad_logits = probabilities * share  # (H, N, V/H)
        grad_logits[block, token, column] -= share
        return grad_logits.reshape(ctx.logits_shape), None, None, None, None, None


def cross_entropy(logits: Tensor, targets, vocab: int, first: int = 0, all_max=identity, all_sum=identity) -> Tensor:
    """The mean over all tokens of -log(probability of the target), the logits being in head blocks.

    Args:
        logits: (H, ..., V/H); tokens from ``vocab`` on only fill up the last blocks and have probability 0.
        targets: integers below ``vocab``, of shape (...).
        vocab: the number of real tokens.
        first: the token that the first column of the first block stands for. 0 where all the blocks are here.
        all_max, all_sum: join this maximum (N,), or this float64 sum (N,), with those of the processes that hold the
            other blocks. Nothing is left to join where all the blocks are here.

    Returns:
        A scalar of the logits' dtype. The tokens' losses are summed in float64 and rounded once.

    Raises:
        ValueError: if the shapes do not match, or a target is not below ``vocab``.
    """
    if logits.shape[1:-1] != targets.shape:
        raise ValueError(f"cross_entropy: targets of shape {targets.shape} do not fit logits of shape {logits.shape}")
    if all_sum is identity and logits.shape[0] * logits.shape[-1] < vocab:
        raise ValueError(f"cross_entropy: only {logits.shape[0] * logits.shape[-1]} of {vocab} tokens' logits are here")
    if targets.size == 0 or targets.min() < 0 or targets.max() >= vocab:
        raise ValueError(f"cross_entropy needs targets, all from 0 to {vocab - 1}")
    return CrossEntropy.apply(logits, targets, vocab, first, all_max, all_sum)
