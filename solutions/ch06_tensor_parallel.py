"""Chapter 6: tensor parallelism, in which every rank has a shard of each layer, and sequence parallelism on top.

Each function here is one rank's part; all ranks of ``group`` call it together. You may use what is imported below,
NumPy, and what you write here. B is the number of samples in a micro-batch, T the tokens per sample, C the model's
width, H the heads of the full model, N the ranks, which divide H.

**What you need from autograd.** A ``Tensor`` has an array, ``data``. An operation on tensors is a subclass of
``Function`` with two static methods:

    forward(ctx, *arguments)   gets the arrays of tensors, and everything else unchanged; returns the output array
    backward(ctx, gradient)    gets the gradient of the output; returns one gradient per argument of forward, in order:
                               an array of the argument's shape, and None for arguments that are not tensors

Call it as ``TheFunction.apply(*arguments)``, which returns a Tensor. ``ctx`` connects the two methods:

    ctx.group = group                 keeps anything, under a name that the graph does not use; it uses those below, and
                                      began, dtype, exact, flops, freed, function, load, modes, name, nbytes,
                                      needs_input_grad, policy, saved, saved_factors, shape and sources
    ctx.save_for_backward(a, b)       keeps arrays; backward finds them in ctx.saved_arrays. In 16-bit training float32
                                      arrays are kept in 16 bits, but for those in exact: (a, exact=(b,)).
                                      They come last in ctx.saved_arrays
    ctx.grad_dtype = np.float64       the dtype in which backward gets the output's gradient. By default it is rounded
                                      to the output's dtype, which is too early if other ranks' gradients are still to
                                      be added; with float64 it arrives unrounded
    ctx.rounds = False                16-bit training rounds neither the output nor its gradient to 16 bits

The arrays that forward and backward get belong to others too: copy them before you change them.

**What the library provides.** A ``Parameter`` is a Tensor that is trained: its gradient is in ``grad``, and ``sharded``
says whether other ranks have other shards of it (instead of a replica each). ``shard_heads(parameter, group)`` keeps
this rank's heads of a parameter. ``copy_parameter_to_group(parameter, group, reduce_dtype)`` is f, of task 6.1, for
replicated parameters. And in ``functional`` there are, for the H/N heads of a rank:

    copy_to_heads(x, heads)           (B, T, C) -> (heads, B, T, C): the same for each head
    linear(x, weight, bias, partial=False)
                                      (H/N, B, T, in) -> (H/N, B, T, out), head by head; the bias may be None. 16-bit
                                      training rounds the result to 16 bits, unless it is ``partial``: terms of a sum
    reduce_from_heads(y, dtype)       (H/N, B, T, C) -> (B, T, C), the sum over this rank's heads, in ``dtype``: in
                                      float64 it is not rounded yet, so other ranks' sums can be added to it
    sum_over_heads(array)             the same for an array, in float64: (heads, ...) -> (...)
    gelu(x)                           element by element

``minidist check 6`` grades your code, and ``minidist check --hint 6.2`` gives a hint. Whatever shares its name with
one of minidist's own functions or classes takes the same arguments, so the library can train on yours:

    minidist verify --impl exercises tp=2 tp=4 tp=2,sp=1 dp=2,tp=2
    minidist verify --impl exercises --precision bf16 tp=2 tp=2,sp=1
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


# 6.1  f and g, a conjugate pair: what one does in forward, the other does in backward


def sum_over(array: np.ndarray, group: ProcessGroup, dtype) -> np.ndarray:
    """6.1  The sum of all ranks' arrays, taken in ``dtype``: a new array of that dtype. Do not change ``array``.

    It may have any dtype, shape and memory order; an all-reduce needs C order.
    """
    # >>> 6.1
    total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same
    all_reduce(total, ReduceOp.SUM, group)
    return total
    # <<<


class CopyToGroup(Function):
    """6.1  Megatron's f: passes an array that every rank has, unchanged, to computations that differ by rank.

    Each rank's gradient is the partial sum from its own computation. Backward must receive it in ``reduce_dtype``, sum
    over the ranks in that dtype, and pass the sum on without rounding.
    """

    @staticmethod
    def forward(ctx: Context, x, group: ProcessGroup, reduce_dtype):
        # >>> 6.1
        ctx.group, ctx.grad_dtype = group, reduce_dtype
        return x
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        # >>> 6.1
        return sum_over(gradient, ctx.group, ctx.grad_dtype), None, None
        # <<<


class ReduceFromGroup(Function):
    """6.1  Megatron's g: the sum of all ranks' arrays, taken in ``reduce_dtype`` and then rounded to ``dtype``.

    From there on every rank computes the same, so each already has the full gradient.
    """

    @staticmethod
    def forward(ctx: Context, x, group: ProcessGroup, reduce_dtype, dtype):
        # >>> 6.1
        return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        # >>> 6.1
        return gradient, None, None, None
        # <<<


def copy_to_group(x: Tensor, group: ProcessGroup, reduce_dtype=np.float64) -> Tensor:
    """6.1  f as a function of tensors: apply your Function.

    Cost: nothing in forward; in backward one all-reduce of as many elements as ``x`` has.
    """
    # >>> 6.1
    return CopyToGroup.apply(x, group, reduce_dtype)
    # <<<


def reduce_from_group(x: Tensor, group: ProcessGroup, reduce_dtype=np.float64, dtype=None) -> Tensor:
    """6.1  g as a function of tensors: apply your Function. ``dtype`` is the result's; None means that of ``x``.

    Cost: in forward one all-reduce of as many elements as ``x`` has; nothing in backward.
    """
    # >>> 6.1
    return ReduceFromGroup.apply(x, group, reduce_dtype, dtype)
    # <<<


# 6.2  Into the heads and out of them. With sequence parallelism, from task 6.6 on, another pair replaces f and g; these
# two functions choose.


def enter_heads(x: Tensor, layer: "ColumnParallelLinear") -> Tensor:
    """Given: f of a column parallel layer, (B, T, C) -> (B, T, C); with sequence parallelism, from (B, T/N, C)."""
    if layer.sequence:
        return all_gather_in_group(x, layer.group, SEQUENCE, layer.reduce_dtype)
    return copy_to_group(x, layer.group, layer.reduce_dtype)


def leave_heads(x: Tensor, layer: "RowParallelLinear", dtype) -> Tensor:
    """Given: g of a row parallel layer, (B, T, C) -> (B, T, C), rounded to ``dtype``; with sequence parallelism, to
    (B, T/N, C).
    """
    if layer.sequence:
        return reduce_scatter_in_group(x, layer.group, SEQUENCE, layer.reduce_dtype, dtype)
    return reduce_from_group(x, layer.group, layer.reduce_dtype, dtype)


class ColumnParallelLinear(Module):
    """6.2  A linear layer into the heads; this rank computes H/N of them: (B, T, C) -> (H/N, B, T, out).

    Its ``weight`` is (H/N, C, out), its ``bias`` (H/N, out); no other rank has any of it.

    Args:
        linear: the full layer, as one process has it. This rank keeps its heads of the parameters.
        group: the tensor-parallel ranks, N of them.
        sequence: whether the input is split along the tokens.
        reduce_dtype: the dtype of sums over the ranks.
    """

    def __init__(self, linear: ColumnLinear, group: ProcessGroup, sequence: bool, reduce_dtype=np.float64) -> None:
        self.weight, self.bias = shard_heads(linear.weight, group), shard_heads(linear.bias, group)
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def forward(self, x: Tensor) -> Tensor:
        """Compute the columns of this rank's heads from an input that every rank has.

        Cost: nothing; in backward one all-reduce of B T C elements (with sequence parallelism, other calls).
        """
        # >>> 6.2
        x = enter_heads(x, self)  # (B, T, C)
        x = functional.copy_to_heads(x, len(self.weight.data))  # (H/N, B, T, C)
        return functional.linear(x, self.weight, self.bias)  # (H/N, B, T, out)
        # <<<


class RowParallelLinear(Module):
    """6.2  A linear layer out of the heads: (H/N, B, T, in) -> (B, T, C), the sum over all H heads, plus the bias.

    Its ``weight`` is (H/N, in, C); no other rank has any of it. Its ``bias`` (C,) is replicated on all ranks.

    Args:
        linear, group, reduce_dtype: as for ``ColumnParallelLinear``.
        sequence: whether the output is split along the tokens.
    """

    def __init__(self, linear: RowLinear, group: ProcessGroup, sequence: bool, reduce_dtype=np.float64) -> None:
        self.weight, self.bias = shard_heads(linear.weight, group), linear.bias
        self.group, self.sequence, self.reduce_dtype = group, sequence, reduce_dtype

    def forward(self, x: Tensor) -> Tensor:
        """Compute an output that every rank has from this rank's heads.

        Between the products and the result, sums are taken in ``reduce_dtype`` and rounded once, to the dtype of the
        products: the products are terms of a sum.

        Cost: one all-reduce of B T C elements; in backward nothing (with sequence parallelism, other calls).
        """
        bias = self.bias
        if self.sequence:  # given, like enter_heads and leave_heads: each rank adds it to other tokens
            bias = copy_parameter_to_group(bias, self.group, self.reduce_dtype)
        # >>> 6.2
        y = functional.linear(x, self.weight, partial=True)  # (H/N, B, T, C)
        partial = functional.reduce_from_heads(y, self.reduce_dtype)  # (B, T, C), over the heads here
        return leave_heads(partial, self, y.dtype) + bias  # (B, T, C)
        # <<<


def train_row_parallel(
    features: np.ndarray, targets: np.ndarray, steps: int, lr: float, group: ProcessGroup
) -> tuple[list[float], np.ndarray, np.ndarray]:
    """6.3  Debugging: a linear layer with its rows split over the ranks, trained by gradient descent.

    Every rank has all samples, but only some features of each, and the matching rows of the weight. Everything starts
    from zero. One rank trains correctly. On several ranks the first loss is correct, and the loss falls as it should,
    or somewhat faster. But if you gather the trained layer and run it on one rank, its answers are far off. Find out
    why, and fix it: any number of ranks must do what one rank does.

    Args:
        features: (samples, this rank's features) float64. Ranks may have different numbers of features, or none.
        targets: (samples, outputs) float64, the same on every rank.
        steps, lr: of gradient descent.
        group: the ranks.

    Returns:
        The loss before each step; the weight, (this rank's features, outputs); and the bias, (outputs,), replicated on
        all ranks.
    """
    samples, outputs = targets.shape
    weight = np.zeros((features.shape[1], outputs))
    bias = np.zeros(outputs)
    losses = []
    for _ in range(steps):
        # >>> 6.3
        y = features @ weight  # (samples, outputs), this rank's partial sum
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


def heads_of(rank: int, ranks: int, heads: int) -> range:
    """6.4  The heads of a rank, out of 0 to H - 1: the same number on each rank, consecutive, in rank order.

    Args:
        rank: from 0 to ``ranks`` - 1.
        ranks: N.
        heads: H, of the full model.

    Returns:
        ``range(start, stop)``.

    Raises:
        ValueError: if the ranks do not divide the heads; the message contains both numbers.
    """
    # >>> 6.4
    if heads % ranks:
        raise ValueError(f"{heads} heads cannot be split over {ranks} ranks")
    each = heads // ranks
    return range(rank * each, (rank + 1) * each)
    # <<<


def split_qkv(fused: np.ndarray, heads: int, rank: int, ranks: int) -> np.ndarray:
    """6.4  The weight of a rank's heads, from the fused query-key-value weight of a checkpoint.

    GPT-2's checkpoints, and many others, compute ``y = x @ fused`` with the columns [all queries | all keys | all
    values]; each third has the heads in order, D = C / H columns per head. minidist's weight has a leading axis of
    heads, and each head has the columns [its queries | its keys | its values].

    Args:
        fused: (C, 3C), of any dtype and memory order; do not change it.
        heads: H.
        rank, ranks: whose heads to return, as in ``heads_of``.

    Returns:
        (H/N, C, 3D), a new array in C order that owns its memory: a view would keep the full weight alive.
    """
    # >>> 6.4
    width = len(fused)
    columns = fused.reshape(width, 3, heads, width // heads)  # (C, q k v, H, D)
    by_head = columns.transpose(2, 0, 1, 3)  # (H, C, q k v, D)
    mine = heads_of(rank, ranks, heads)
    return by_head[mine.start : mine.stop].reshape(len(mine), width, -1).copy()
    # <<<


def rows_and_targets(logits: np.ndarray, targets: np.ndarray, vocab: int, group: ProcessGroup):
    """Given: this rank's logits, token by token, and the positions among them of the targets on this rank.

    Args:
        logits, targets, vocab, group: as for ``vocab_parallel_cross_entropy``, but the logits as an array.

    Returns:
        Four arrays: ``rows`` (H/N, tokens, V/H), the logits with -inf in the columns that only pad the vocabulary; and
        ``token``, ``head`` and ``column``, of equal length, for the tokens whose targets are here:
        ``rows[head[i], token[i], column[i]]`` is the logit of the target of ``token[i]``.
    """
    heads, *_, width = logits.shape
    first = group.rank * heads * width  # the target of the first column here
    rows = mask_padding(logits.reshape(heads, -1, width), vocab, first)
    offset = targets.reshape(-1).astype(np.int64) - first
    (token,) = np.nonzero((offset >= 0) & (offset < heads * width))
    return rows, token, *np.divmod(offset[token], width)


class VocabParallelCrossEntropy(Function):
    """6.5  The mean cross-entropy of logits that are split over the ranks by heads and never gathered.

    The loss of a token is log(sum of exp(logit - largest)) + largest - (the target's logit), over the full vocabulary.
    To match one process bit for bit, compute it in this order:

    1. The largest logit of each token, over all ranks.
    2. exp(logit - largest), summed over the columns of each head in the logits' dtype (``sum(axis=-1)``), over the
       heads in float64 (``functional.sum_over_heads``), over the ranks in float64; then rounded to the logits' dtype.
    3. The target's logit, which is on one rank: summed over the ranks in float64, then rounded to the logits' dtype.
    4. ``np.log(total) + largest - at_target`` in that dtype; the mean over all tokens in float64, rounded to it.
    5. The gradient, entirely in the logits' dtype: with ``share = gradient / tokens``, it is the probabilities times
       ``share``, minus ``share`` at the target. The probabilities are exp(logit - largest) / total. (Other orders, or
       float64, are just as correct but give other bits.)

    In 16-bit training the logits are float32 with values of 16 bits. The loss, its gradient and the probabilities stay
    in float32.
    """

    @staticmethod
    def forward(ctx: Context, logits, targets, vocab: int, group: ProcessGroup):
        """Cost: three all-reduces of one number per token."""
        # >>> 6.5
        rows, token, head, column = rows_and_targets(logits, targets, vocab, group)
        largest = rows.max(axis=(0, 2))  # (tokens,)
        all_reduce(largest, ReduceOp.MAX, group)
        exps = np.exp(rows - largest[:, None])  # (H/N, tokens, V/H)
        total = functional.sum_over_heads(exps.sum(axis=-1))  # (tokens,) float64
        all_reduce(total, ReduceOp.SUM, group)
        total = total.astype(rows.dtype)
        at_target = np.zeros(rows.shape[1])
        at_target[token] = rows[head, token, column]
        all_reduce(at_target, ReduceOp.SUM, group)
        losses = np.log(total) + largest - at_target.astype(rows.dtype)  # (tokens,)

        ctx.save_for_backward(token, head, column, exact=(exps / total[:, None],))
        ctx.rounds, ctx.shape_of_logits = False, logits.shape
        return losses.mean(dtype=np.float64).astype(rows.dtype)
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        """The gradient of this rank's logits, (H/N, B, T, V/H), from that of the mean, a scalar. Sends nothing."""
        # >>> 6.5
        token, head, column, probabilities = ctx.saved_arrays
        share = gradient / probabilities.shape[1]  # what one token adds to the mean
        grad_logits = probabilities * share
        grad_logits[head, token, column] -= share
        return grad_logits.reshape(ctx.shape_of_logits), None, None, None
        # <<<


def vocab_parallel_cross_entropy(logits: Tensor, targets, vocab: int, group: ProcessGroup) -> Tensor:
    """6.5  The mean cross-entropy, equal on all ranks: apply your Function.

    Args:
        logits: (H/N, B, T, V/H), for this rank's part of the vocabulary; the ranks' parts are in rank order.
        targets: integers (B, T), from 0 to ``vocab`` - 1; the same on every rank.
        vocab: size of the vocabulary. Columns beyond it are padding.
        group: the ranks.

    Returns:
        A scalar of the logits' dtype.
    """
    # >>> 6.5
    return VocabParallelCrossEntropy.apply(logits, targets, vocab, group)
    # <<<


# 6.6  The conjugate pair of sequence parallelism: an all-reduce, cut into its two halves


def join_parts(array: np.ndarray, group: ProcessGroup, axis: int) -> np.ndarray:
    """6.6  All ranks' arrays, which have one shape, concatenated along ``axis``: a new array on every rank.

    Cost: one all-gather, in the array's own dtype.
    """
    # >>> 6.6
    stacked = np.empty((group.size, *array.shape), array.dtype)  # (N, ...)
    all_gather_into_tensor(stacked, np.ascontiguousarray(array), group)
    return np.concatenate(list(stacked), axis)
    # <<<


def sum_and_split(array: np.ndarray, group: ProcessGroup, axis: int, dtype) -> np.ndarray:
    """6.6  This rank's part, along ``axis``, of the sum of all ranks' arrays: a new array, summed in ``dtype``.

    ``array`` has the same shape on every rank; do not change it. The parts have equal length and are in rank order.

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
    """6.6  All ranks' parts, concatenated along ``axis``, from which each rank computes something different.

    So each rank has a gradient for all parts, and the owner of a part needs their sum, taken in ``reduce_dtype``.
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
    sum; the gradient of a rank's array needs all parts.
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
    """6.6  The all-gather as a function of tensors: apply your Function.

    Cost: one all-gather in forward, one reduce-scatter in backward.
    """
    # >>> 6.6
    return AllGatherInGroup.apply(x, group, axis, reduce_dtype)
    # <<<


def reduce_scatter_in_group(x: Tensor, group: ProcessGroup, axis: int, reduce_dtype=np.float64, dtype=None) -> Tensor:
    """6.6  The reduce-scatter: apply your Function. ``dtype`` is the result's; None means that of ``x``.

    Cost: one reduce-scatter in forward, one all-gather in backward.
    """
    # >>> 6.6
    return ReduceScatterInGroup.apply(x, group, axis, reduce_dtype, dtype)
    # <<<


def mlp_of_tokens(x: Tensor, norm: LayerNorm, fc: Module, proj: Module, group: ProcessGroup) -> Tensor:
    """6.7  Debugging: the second half of a transformer layer, under sequence parallelism.

    Its output matches one process bit for bit, and so does the gradient of ``x``. The loss falls. All ranks start from
    the same parameters, but after a few hundred steps they no longer agree on all replicated ones. Find out why, and
    fix it: the gradients must be those of one process.

    Args:
        x: (B, T/N, C), this rank's tokens.
        norm: has the parameters ``gain`` and ``bias``, (C,) each, replicated on all ranks. All it computes is
            ``functional.layer_norm(x, gain, bias)``.
        fc: from C to this rank's hidden units, a column parallel layer with ``sequence=True``. It is correct.
        proj: from there to C, a row parallel layer with ``sequence=True``. It is correct too.
        group: the tensor-parallel ranks.

    Returns:
        (B, T/N, C), for the same tokens.
    """
    # >>> 6.7
    gain = copy_parameter_to_group(norm.gain, group)
    bias = copy_parameter_to_group(norm.bias, group)
    normal = functional.layer_norm(x, gain, bias)  # (B, T/N, C)
    # === given to the learner
    # normal = norm(x)  # (B, T/N, C)
    # <<<
    hidden = functional.gelu(fc(normal))  # (H/N, B, T, out)
    return x + proj(hidden)  # (B, T/N, C)


def global_grad_norm(parameters: Sequence[Parameter], group: ProcessGroup) -> float:
    """6.8  The norm of the full model's gradient: the square root of the sum of all squares, as on one process.

    Args:
        parameters: this rank's. Other ranks have other shards of those that are ``sharded``. The others are replicated,
            with the same gradient on every rank. A parameter whose ``grad`` is None has no gradient on any rank.
        group: the tensor-parallel ranks.

    Returns:
        The same number on every rank. Squares are taken and added in float64.

    Cost: one all-reduce of one number.
    """
    # >>> 6.8
    squares = np.zeros(1)
    for parameter in parameters:
        if parameter.grad is not None and (parameter.sharded or group.rank == 0):
            squares += np.sum(parameter.grad.astype(np.float64) ** 2)
    all_reduce(squares, ReduceOp.SUM, group)
    return float(np.sqrt(squares[0]))
    # <<<


# 6.9  Worksheet: the traffic of tensor parallelism
#
# A transformer of ``layers`` layers, each an attention and an MLP, on N tensor-parallel ranks, without sequence
# parallelism. Count only the layers, without the embedding and the output head. All-reduces use a ring in rank order.
# Everything is for one micro-batch of ``samples`` samples with ``tokens`` tokens each.


def all_reduces(layers: int) -> int:
    """Number of all-reduces in forward and backward of one micro-batch together."""
    # >>> 6.9
    return 4 * layers
    # <<<


def all_reduce_bytes(samples: int, tokens: int, width: int, element_bytes: int) -> int:
    """Size in bytes of what one of them sums, for a model of width C and elements of ``element_bytes`` bytes."""
    # >>> 6.9
    return samples * tokens * width * element_bytes
    # <<<


def sent_bytes(ranks: int, layers: int, samples: int, tokens: int, width: int, element_bytes: int) -> float:
    """Bytes that one rank sends for all of them, on average over the ranks."""
    # >>> 6.9
    each = all_reduce_bytes(samples, tokens, width, element_bytes)
    return all_reduces(layers) * 2 * (ranks - 1) / ranks * each
    # <<<


def all_reduce_seconds(nbytes: float, ranks: int, node: int, inside: float, between: float) -> float:
    """Seconds until each rank has sent ``nbytes`` bytes in total.

    Ranks 0 to ``node`` - 1 are the GPUs of one node, the next ones those of another, and so on. In each step of a ring
    every rank sends the same amount, and the step ends when the slowest is done. Ignore latency.

    Args:
        nbytes: bytes that each rank sends.
        ranks: N, at least 2, in one ring.
        node: number of GPUs per node.
        inside: bytes per second from GPU to GPU inside a node (NVLink).
        between: bytes per second from a GPU of one node to a GPU of another (InfiniBand); less than ``inside``.
    """
    # >>> 6.9
    return nbytes / (inside if ranks <= node else between)
    # <<<


def communication_share(communication: float, parameters: float, tokens: int, ranks: int, flops: float) -> float:
    """The fraction of a micro-batch's time spent in all-reduces, from 0 to 1. Nothing is computed while they run.

    Args:
        communication: seconds for all all-reduces.
        parameters: of the full model; each rank computes with one N-th of them.
        tokens: of the micro-batch, all samples together. Each takes 6 floating-point operations per parameter.
        ranks: N.
        flops: floating-point operations per second of one rank.
    """
    # >>> 6.9
    computation = 6 * parameters * tokens / (ranks * flops)
    return communication / (communication + computation)
    # <<<
