"""Chapter 6: tensor parallelism, in which every rank has a part of each layer, and sequence parallelism with it.

Every function here is one rank's part; all ranks of ``group`` call it together. You may use what is imported below,
NumPy, and what you write here. B are the samples of a micro-batch, T the tokens of each, C the model's width, H the
head blocks of the whole model, N the ranks, which divide H.

**What you need of autograd.** A ``Tensor`` has an array, ``data``. An operation on tensors is a class built on
``Function`` with two static methods:

    forward(ctx, *arguments)   gets the arrays of tensors, and all else as it is; returns the output's array
    backward(ctx, gradient)    gets the gradient of the output; returns a gradient for each argument of forward, in
                               order: an array of the argument's shape, and None for what is no tensor

It is called with ``TheFunction.apply(*arguments)``, which returns a Tensor. ``ctx`` goes from one method to the other:

    ctx.group = group                 keeps anything, under any name but those below, shape, dtype and name
    ctx.save_for_backward(a, b)       keeps arrays, which backward finds in ctx.saved_arrays
    ctx.grad_dtype = np.float64       in which dtype the output's gradient is to come. If nothing is said, it is rounded
                                      to the output's own on its way, which is too early where it is still to be added
                                      to other ranks'; as float64 it comes unrounded

An array that forward or backward is given belongs to others too: make a copy before you change it.

**What the library gives you.** A ``Parameter`` is a Tensor that is trained: its gradient is in ``grad``, and its
``sharded`` says whether other ranks have other parts of it (not a copy each). ``shard_heads(parameter, group)`` keeps
this rank's blocks of one. ``copy_parameter_to_group(parameter, group, reduce_dtype)`` is f, of task 6.2, for parameters
of which every rank has a copy. And there are, in ``functional``, for the H/N blocks of a rank:

    copy_to_heads(x, blocks)         (B, T, C) -> (blocks, B, T, C): the same for each block
    linear(x, weight, bias)           (H/N, B, T, in) -> (H/N, B, T, out), block by block; the bias may be left out
    reduce_from_heads(y, dtype)      (H/N, B, T, C) -> (B, T, C), the sum over the blocks here, in ``dtype``: as
                                      float64 it has not been rounded, so that others' sums can be added to it
    sum_over_heads(array)            the same of an array, in float64: (blocks, ...) -> (...)
    gelu(x)                           element by element

``minidist check 6`` judges, ``minidist check --hint 6.3`` helps. Whatever has the name of one of minidist's own pieces
has its arguments too, so the library can train on it:

    minidist verify --impl exercises tp=2 tp=4 tp=2,sp=1 dp=2,tp=2
"""

from collections.abc import Sequence

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_gather_into_tensor, all_reduce, reduce_scatter_tensor
from minidist.nn import functional
from minidist.nn.layers import ColumnLinear, LayerNorm, Module, Parameter, RowLinear
from minidist.nn.loss import mask_padding
from minidist.nn.tensor import Context, Function, Tensor
from minidist.parallel.tensor import shard_heads
from minidist.parallel.tools.mappings import copy_parameter_to_group

SEQUENCE = 1  # the axis of the tokens in (B, T, C)

# 6.1  Worksheet: what tensor parallelism costs in messages
#
# A transformer of so many layers, each an attention and an MLP, on N tensor-parallel ranks, without sequence
# parallelism. Counted are the layers alone, without the embedding and the output head. An all-reduce goes round a ring,
# in which the ranks stand in their order. Everything is for one micro-batch of ``samples`` samples of ``tokens`` tokens
# each.


def all_reduces(layers: int) -> int:
    """How many all-reduces forward and backward of one micro-batch take together."""
    # >>> 6.1
    return 4 * layers
    # <<<


def all_reduce_bytes(samples: int, tokens: int, width: int, element_bytes: int) -> int:
    """The size of what one of them sums, for a model of this width C and elements of so many bytes."""
    # >>> 6.1
    return samples * tokens * width * element_bytes
    # <<<


def sent_bytes(ranks: int, layers: int, samples: int, tokens: int, width: int, element_bytes: int) -> float:
    """What one rank sends for all of them, on average over the ranks."""
    # >>> 6.1
    each = all_reduce_bytes(samples, tokens, width, element_bytes)
    return all_reduces(layers) * 2 * (ranks - 1) / ranks * each
    # <<<


def all_reduce_seconds(nbytes: float, ranks: int, machine: int, inside: float, between: float) -> float:
    """How long it takes until a rank has sent so many bytes, all told.

    Ranks 0 to ``machine`` - 1 are the GPUs of one machine, the next ones those of another, and so on. In each step of a
    ring every rank sends equally much, and the step ends when the slowest has. Latency is not counted.

    Args:
        nbytes: that each rank sends.
        ranks: N, in one ring.
        machine: how many GPUs are in one machine.
        inside: bytes a second from one GPU to another in the same machine (NVLink).
        between: bytes a second from a GPU of one machine to one of another (InfiniBand).
    """
    # >>> 6.1
    return nbytes / (inside if ranks <= machine else between)
    # <<<


def communication_share(communication: float, parameters: float, tokens: int, ranks: int, flops: float) -> float:
    """The part of a micro-batch's time that goes by in all-reduces, from 0 to 1; while they run, nothing is computed.

    Args:
        communication: seconds for all of them.
        parameters: of the whole model, of which each rank computes with one N-th.
        tokens: of the micro-batch, all samples together. Each takes 6 floating-point operations for each parameter.
        ranks: N.
        flops: floating-point operations a second of one rank.
    """
    # >>> 6.1
    computation = 6 * parameters * tokens / (ranks * flops)
    return communication / (communication + computation)
    # <<<


# 6.2  f and g, a conjugate pair: what one does in forward, the other does in backward


def sum_over(array: np.ndarray, group: ProcessGroup, dtype) -> np.ndarray:
    """6.2  The sum of all ranks' arrays, taken in ``dtype``: a new array of that dtype. ``array`` is not changed.

    It may be of any dtype and shape, and in any order in memory; an all-reduce needs C order.
    """
    # >>> 6.2
    total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same
    all_reduce(total, ReduceOp.SUM, group)
    return total
    # <<<


class CopyToGroup(Function):
    """6.2  Megatron's f: what every rank has goes, as it is, into what each rank computes differently.

    Each rank's gradient is the part that comes of its own computation. These parts have to come here in
    ``reduce_dtype``; they are summed over the ranks in it, and the sum is handed on as it is.
    """

    @staticmethod
    def forward(ctx: Context, x, group: ProcessGroup, reduce_dtype):
        # >>> 6.2
        ctx.group, ctx.grad_dtype = group, reduce_dtype
        return x
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        # >>> 6.2
        return sum_over(gradient, ctx.group, ctx.grad_dtype), None, None
        # <<<


class ReduceFromGroup(Function):
    """6.2  Megatron's g: the sum of all ranks' arrays, taken in ``reduce_dtype`` and then rounded to ``dtype``.

    From there on every rank computes the same, so each has the whole gradient already.
    """

    @staticmethod
    def forward(ctx: Context, x, group: ProcessGroup, reduce_dtype, dtype):
        # >>> 6.2
        return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        # >>> 6.2
        return gradient, None, None, None
        # <<<


def copy_to_group(x: Tensor, group: ProcessGroup, reduce_dtype=np.float64) -> Tensor:
    """6.2  f, as a function of tensors: apply your Function.

    Cost: nothing in forward; in backward one all-reduce of as many elements as ``x`` has.
    """
    # >>> 6.2
    return CopyToGroup.apply(x, group, reduce_dtype)
    # <<<


def reduce_from_group(x: Tensor, group: ProcessGroup, reduce_dtype=np.float64, dtype=None) -> Tensor:
    """6.2  g, as a function of tensors: apply your Function. ``dtype`` is the result's; None for that of ``x``.

    Cost: in forward one all-reduce of as many elements as ``x`` has; nothing in backward.
    """
    # >>> 6.2
    return ReduceFromGroup.apply(x, group, reduce_dtype, dtype)
    # <<<


# 6.3  Into the blocks and out of them. With sequence parallelism, from task 6.6 on, another pair stands in for f and g;
# these two know which.


def enter_heads(x: Tensor, layer: "ColumnParallelLinear") -> Tensor:
    """Given: f of a column parallel layer, (B, T, C) -> (B, T, C); with sequence parallelism from (B, T/N, C)."""
    if layer.sequence:
        return all_gather_in_group(x, layer.group, SEQUENCE, layer.reduce_dtype)
    return copy_to_group(x, layer.group, layer.reduce_dtype)


def leave_blocks(x: Tensor, layer: "RowParallelLinear", dtype) -> Tensor:
    """Given: g of a row parallel layer, (B, T, C) -> (B, T, C), rounded to ``dtype``; with sequence parallelism to
    (B, T/N, C).
    """
    if layer.sequence:
        return reduce_scatter_in_group(x, layer.group, SEQUENCE, layer.reduce_dtype, dtype)
    return reduce_from_group(x, layer.group, layer.reduce_dtype, dtype)


class ColumnParallelLinear(Module):
    """6.3  A linear layer into the blocks of all ranks, of which this rank has some: (B, T, C) -> (H/N, B, T, out).

    Its ``weight`` is (H/N, C, out), its ``bias`` (H/N, out); no other rank has any of it.

    Args:
        linear: the whole layer, as one process has it. Of its parameters this rank's blocks are kept.
        group: the tensor-parallel ranks, N of them.
        sequence: whether what comes in is split along the tokens.
        reduce_dtype: in which sums over the ranks are taken.
    """

    def __init__(self, linear: ColumnLinear, group: ProcessGroup, sequence: bool, reduce_dtype=np.float64) -> None:
        self.weight, self.bias = shard_heads(linear.weight, group), shard_heads(linear.bias, group)
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def forward(self, x: Tensor) -> Tensor:
        """From what every rank has to the columns of this rank's blocks.

        Cost: nothing; in backward one all-reduce of B T C elements (with sequence parallelism other calls).
        """
        # >>> 6.3
        x = enter_heads(x, self)  # (B, T, C)
        x = functional.copy_to_heads(x, len(self.weight.data))  # (H/N, B, T, C)
        return functional.linear(x, self.weight, self.bias)  # (H/N, B, T, out)
        # <<<


class RowParallelLinear(Module):
    """6.3  A linear layer out of the blocks of all ranks: (H/N, B, T, in) -> (B, T, C), the sum over all H blocks, plus
    the bias.

    Its ``weight`` is (H/N, in, C), and no other rank has any of it. Its ``bias`` (C,) every rank has a copy of.

    Args:
        linear, group, reduce_dtype: as for ``ColumnParallelLinear``.
        sequence: whether what goes out is split along the tokens.
    """

    def __init__(self, linear: RowLinear, group: ProcessGroup, sequence: bool, reduce_dtype=np.float64) -> None:
        self.weight, self.bias = shard_heads(linear.weight, group), linear.bias
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def forward(self, x: Tensor) -> Tensor:
        """From this rank's blocks to what every rank has. Between the products and the result, sums are taken in
        ``reduce_dtype`` and rounded once, to the dtype of the products.

        Cost: one all-reduce of B T C elements; in backward nothing (with sequence parallelism other calls).
        """
        bias = self.bias
        if self.sequence:  # given, as enter_heads and leave_blocks are: each rank adds it to other tokens
            bias = copy_parameter_to_group(bias, self.group, self.reduce_dtype)
        # >>> 6.3
        y = functional.linear(x, self.weight)  # (H/N, B, T, C)
        partial = functional.reduce_from_heads(y, self.reduce_dtype)  # (B, T, C), over the blocks here
        return leave_blocks(partial, self, y.dtype) + bias  # (B, T, C)
        # <<<


def heads_of(rank: int, ranks: int, blocks: int) -> range:
    """6.4  Which of the head blocks 0, 1, ... lie on a rank: equally many on each, in order, one behind the other.

    Args:
        rank: from 0 to ``ranks`` - 1.
        ranks: N.
        blocks: H, of the whole model.

    Returns:
        ``range(start, stop)``.

    Raises:
        ValueError: if the ranks do not divide the blocks; the message has both numbers.
    """
    # >>> 6.4
    if blocks % ranks:
        raise ValueError(f"{blocks} head blocks cannot be split over {ranks} ranks")
    each = blocks // ranks
    return range(rank * each, (rank + 1) * each)
    # <<<


def split_qkv(fused: np.ndarray, heads: int, rank: int, ranks: int) -> np.ndarray:
    """6.4  From the one query-key-value weight of a checkpoint to the head blocks of a rank.

    GPT-2's checkpoints, and many others, have ``y = x @ fused`` with the columns laid out as [all queries | all keys |
    all values], in each of the three head after head, D = C / H columns for each. minidist has a block for each head,
    with the columns [its queries | its keys | its values].

    Args:
        fused: (C, 3C), of any dtype; not changed.
        heads: H.
        rank, ranks: whose blocks are asked for, as in ``heads_of``.

    Returns:
        (H/N, C, 3D), a new array in C order, with no more memory behind it than its own: a rank that holds a view holds
        the whole weight.
    """
    # >>> 6.4
    width = len(fused)
    columns = fused.reshape(width, 3, heads, width // heads)  # (C, q k v, H, D)
    blocks = columns.transpose(2, 0, 1, 3)  # (H, C, q k v, D)
    mine = heads_of(rank, ranks, heads)
    return blocks[mine.start : mine.stop].reshape(len(mine), width, -1).copy()
    # <<<


def rows_and_targets(logits: np.ndarray, targets: np.ndarray, vocab: int, group: ProcessGroup):
    """Given: this rank's logits, token by token, and where among them are the targets that are on this rank.

    Args:
        logits, targets, vocab, group: as for ``vocab_parallel_cross_entropy``, the logits as an array.

    Returns:
        Four arrays: ``rows`` (H/N, tokens, V/H), which are the logits, with -inf in the columns that only fill up the
        blocks; and ``token``, ``block`` and ``column``, equally long, for the tokens whose targets are here:
        ``rows[block[i], token[i], column[i]]`` is the logit of the target of ``token[i]``.
    """
    blocks, *_, width = logits.shape
    first = group.rank * blocks * width  # the target that the first column here stands for
    rows = mask_padding(logits.reshape(blocks, -1, width), vocab, first)
    offset = targets.reshape(-1).astype(np.int64) - first
    (token,) = np.nonzero((offset >= 0) & (offset < blocks * width))
    return rows, token, *np.divmod(offset[token], width)


class VocabParallelCrossEntropy(Function):
    """6.5  The mean cross-entropy of logits of which each rank has some blocks, and no rank ever all.

    The loss of a token is log(sum of exp(logit - largest)) + largest - (the target's logit), over the whole vocabulary.
    So that it has the bits of one process, in this order:

    1. The largest logit of each token, over all ranks.
    2. exp(logit - largest), summed over the columns of each block in the logits' own dtype (``sum(axis=-1)``), over the
       blocks in float64 (``functional.sum_over_heads``), over the ranks in float64; then rounded to the logits' dtype.
    3. The target's logit: it is on one rank. In float64 over the ranks, then rounded to the logits' dtype.
    4. ``np.log(total) + largest - at_target`` in that dtype, and the mean of all tokens in float64, rounded to it.
    5. The gradient, all of it in the logits' dtype: with ``share = gradient / tokens``, it is the probabilities times
       ``share``, and then at the target ``share`` less. The probabilities are exp(logit - largest) / total. (Other
       orders, or float64, are as right, and have other bits.)
    """

    @staticmethod
    def forward(ctx: Context, logits, targets, vocab: int, group: ProcessGroup):
        """Cost: three all-reduces with one number for each token."""
        # >>> 6.5
        rows, token, block, column = rows_and_targets(logits, targets, vocab, group)
        largest = rows.max(axis=(0, 2))  # (tokens,)
        all_reduce(largest, ReduceOp.MAX, group)
        exps = np.exp(rows - largest[:, None])  # (H/N, tokens, V/H)
        total = functional.sum_over_heads(exps.sum(axis=-1))  # (tokens,) float64
        all_reduce(total, ReduceOp.SUM, group)
        total = total.astype(rows.dtype)
        at_target = np.zeros(rows.shape[1])
        at_target[token] = rows[block, token, column]
        all_reduce(at_target, ReduceOp.SUM, group)
        losses = np.log(total) + largest - at_target.astype(rows.dtype)  # (tokens,)

        ctx.save_for_backward(exps / total[:, None], token, block, column)
        ctx.shape_of_logits = logits.shape
        return losses.mean(dtype=np.float64).astype(rows.dtype)
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        """From the gradient of the mean, a scalar, to that of this rank's logits, (H/N, B, T, V/H). Cost: nothing."""
        # >>> 6.5
        probabilities, token, block, column = ctx.saved_arrays
        share = gradient / probabilities.shape[1]  # of one token in the mean
        grad_logits = probabilities * share
        grad_logits[block, token, column] -= share
        return grad_logits.reshape(ctx.shape_of_logits), None, None, None
        # <<<


def vocab_parallel_cross_entropy(logits: Tensor, targets, vocab: int, group: ProcessGroup) -> Tensor:
    """6.5  The mean cross-entropy, the same on every rank: apply your Function.

    Args:
        logits: (H/N, B, T, V/H), those of this rank's blocks of the vocabulary; the ranks' lie in order.
        targets: integers (B, T), from 0 to ``vocab`` - 1; the same on every rank.
        vocab: how many tokens there are. Columns beyond them only fill up the blocks.
        group: the ranks.

    Returns:
        A scalar of the logits' dtype.
    """
    # >>> 6.5
    return VocabParallelCrossEntropy.apply(logits, targets, vocab, group)
    # <<<


# 6.6  The conjugate pair of sequence parallelism: an all-reduce, cut in its two halves


def join_parts(array: np.ndarray, group: ProcessGroup, axis: int) -> np.ndarray:
    """6.6  All ranks' arrays, which have one shape, behind each other along ``axis``: on every rank a new array.

    Cost: one all-gather, in the array's own dtype.
    """
    # >>> 6.6
    stacked = np.empty((group.size, *array.shape), array.dtype)  # (N, ...)
    all_gather_into_tensor(stacked, np.ascontiguousarray(array), group)
    return np.concatenate(list(stacked), axis)
    # <<<


def sum_and_split(array: np.ndarray, group: ProcessGroup, axis: int, dtype) -> np.ndarray:
    """6.6  This rank's part, along ``axis``, of the sum of all ranks' arrays, taken in ``dtype``: a new array of it.

    ``array`` has the same shape on every rank, and is not changed. The ranks' parts are equally long, and in order.

    Cost: one reduce-scatter.

    Raises:
        ValueError: if the ranks do not divide the length along ``axis``.
    """
    # >>> 6.6
    parts = np.stack(np.split(array.astype(dtype, order="C"), group.size, axis))  # (N, ...)
    mine = np.empty(parts.shape[1:], dtype)
    reduce_scatter_tensor(mine, parts, ReduceOp.SUM, group)
    return mine
    # <<<


class AllGatherInGroup(Function):
    """6.6  All ranks' parts, joined along ``axis``, for each rank to compute something else from them.

    So each rank has a gradient for all parts, of which the owner of a part needs the sum, taken in ``reduce_dtype``.
    """

    @staticmethod
    def forward(ctx: Context, x, group: ProcessGroup, axis: int, reduce_dtype):
        # >>> 6.6
        ctx.group, ctx.axis, ctx.grad_dtype = group, axis, reduce_dtype
        return join_parts(x, group, axis)
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        # >>> 6.6
        return sum_and_split(gradient, ctx.group, ctx.axis, ctx.grad_dtype), None, None, None
        # <<<


class ReduceScatterInGroup(Function):
    """6.6  This rank's part, along ``axis``, of the sum of all ranks' arrays.

    The sum is taken in ``reduce_dtype`` and then rounded to ``dtype``. Each rank has the gradient of its part of the
    sum; every rank's array needs that of all parts.
    """

    @staticmethod
    def forward(ctx: Context, x, group: ProcessGroup, axis: int, reduce_dtype, dtype):
        # >>> 6.6
        ctx.group, ctx.axis = group, axis
        return sum_and_split(x, group, axis, reduce_dtype).astype(dtype or x.dtype)
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        # >>> 6.6
        return join_parts(gradient, ctx.group, ctx.axis), None, None, None, None
        # <<<


def all_gather_in_group(x: Tensor, group: ProcessGroup, axis: int, reduce_dtype=np.float64) -> Tensor:
    """6.6  The one half, as a function of tensors: apply your Function.

    Cost: one all-gather in forward, one reduce-scatter in backward.
    """
    # >>> 6.6
    return AllGatherInGroup.apply(x, group, axis, reduce_dtype)
    # <<<


def reduce_scatter_in_group(x: Tensor, group: ProcessGroup, axis: int, reduce_dtype=np.float64, dtype=None) -> Tensor:
    """6.6  The other half: apply your Function. ``dtype`` is the result's; None for that of ``x``.

    Cost: one reduce-scatter in forward, one all-gather in backward.
    """
    # >>> 6.6
    return ReduceScatterInGroup.apply(x, group, axis, reduce_dtype, dtype)
    # <<<


def global_grad_norm(parameters: Sequence[Parameter], group: ProcessGroup) -> float:
    """6.7  The norm of the whole model's gradient: the root of the sum of all squares, as one process would find it.

    Args:
        parameters: this rank's, of some of which other ranks have other parts (``sharded``). The others every rank has,
            with the same gradient everywhere. Those whose ``grad`` is None have none, on every rank.
        group: the tensor-parallel ranks.

    Returns:
        The same number on every rank. Squares are taken and added in float64.

    Cost: one all-reduce of one number.
    """
    # >>> 6.7
    squares = np.zeros(1)
    for parameter in parameters:
        if parameter.grad is not None and (parameter.sharded or group.rank == 0):
            squares += np.sum(parameter.grad.astype(np.float64) ** 2)
    all_reduce(squares, ReduceOp.SUM, group)
    return float(np.sqrt(squares[0]))
    # <<<


def train_row_parallel(
    features: np.ndarray, targets: np.ndarray, steps: int, lr: float, group: ProcessGroup
) -> tuple[list[float], np.ndarray, np.ndarray]:
    """6.8  Debugging: a linear layer, its rows split over the ranks, trained by gradient descent.

    Every rank has all samples, but of each sample only some features, and the rows of the weight that belong to them.
    All starts from zero. On one rank all is well. On several the first loss is right, and the loss falls as it should,
    or somewhat faster. But whoever gathers the trained layer and runs it on one rank finds its answers far off. Find
    out why, and mend it: any number of ranks has to do what one rank does.

    Args:
        features: (samples, this rank's features) float64. Ranks may have different numbers of features, or none.
        targets: (samples, outputs) float64, the same on every rank.
        steps, lr: of gradient descent.
        group: the ranks.

    Returns:
        The loss before each step; the weight, (this rank's features, outputs); and the bias, (outputs,), of which every
        rank has a copy.
    """
    samples, outputs = targets.shape
    weight = np.zeros((features.shape[1], outputs))
    bias = np.zeros(outputs)
    losses = []
    for _ in range(steps):
        # >>> 6.8
        y = features @ weight  # (samples, outputs), this rank's part of the sum
        all_reduce(y, ReduceOp.SUM, group)
        y += bias
        # === given to the learner
        # y = features @ weight + bias  # (samples, outputs)
        # all_reduce(y, ReduceOp.SUM, group)
        # <<<
        errors = y - targets
        losses.append(float(np.sum(errors**2) / samples))
        grad_y = 2 * errors / samples
        weight -= lr * features.T @ grad_y
        bias -= lr * grad_y.sum(axis=0)
    return losses, weight, bias


def mlp_of_tokens(x: Tensor, norm: LayerNorm, fc: Module, proj: Module, group: ProcessGroup) -> Tensor:
    """6.9  Debugging: the second half of a transformer's layer, under sequence parallelism.

    What it puts out agrees with one process to the last bit, and so does the gradient of ``x``. The loss falls. But
    after some hundred steps the ranks, each of which is given the same parameters at the start, no longer agree on all
    of those that each should have a copy of. Find out why, and mend it: the gradients have to be those of one process.

    Args:
        x: (B, T/N, C), this rank's tokens.
        norm: with the parameters ``gain`` and ``bias``, (C,) each, of which every rank has a copy. All in it that
            computes is ``functional.layer_norm(x, gain, bias)``.
        fc: from C to this rank's hidden units, a column parallel layer that is told of sequence parallelism.
        proj: from there to C, a row parallel layer that is told of sequence parallelism. It does as it should, and so
            does ``fc``.
        group: the tensor-parallel ranks.

    Returns:
        (B, T/N, C), of the same tokens.
    """
    # >>> 6.9
    gain = copy_parameter_to_group(norm.gain, group)
    bias = copy_parameter_to_group(norm.bias, group)
    normal = functional.layer_norm(x, gain, bias)  # (B, T/N, C)
    # === given to the learner
    # normal = norm(x)  # (B, T/N, C)
    # <<<
    hidden = functional.gelu(fc(normal))  # (H/N, B, T, out)
    return x + proj(hidden)  # (B, T/N, C)
