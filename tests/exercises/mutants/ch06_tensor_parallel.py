"""Planted bugs of chapter 6."""

from minidist.course.authoring.mutants import Mutant

MUTANTS = [
    # 6.1 worksheet
    Mutant("6.1", "two all-reduces a layer: backward is forgotten", "return 4 * layers", "return 2 * layers"),
    Mutant("6.1", "a whole ring for each sub-layer, forward only once", "return 4 * layers", "return 3 * layers"),
    Mutant(
        "6.1",
        "the size of the weight, not of the activations",
        "return samples * tokens * width * element_bytes",
        "return width * width * element_bytes",
    ),
    Mutant(
        "6.1",
        "one sample",
        "return samples * tokens * width * element_bytes",
        "return tokens * width * element_bytes",
    ),
    Mutant("6.1", "half of the ring", "* 2 * (ranks - 1) / ranks * each", "* (ranks - 1) / ranks * each"),
    Mutant("6.1", "the whole buffer to every rank", "* 2 * (ranks - 1) / ranks * each", "* 2 * (ranks - 1) * each"),
    Mutant(
        "6.1",
        "the fast link for as many ranks as are in the machine",
        "return nbytes / (inside if ranks <= machine else between)",
        "return nbytes * (min(ranks, machine) / inside + max(ranks - machine, 0) / between) / ranks",
    ),
    Mutant("6.1", "a full machine counts as two", "ranks <= machine", "ranks < machine"),
    Mutant("6.1", "every rank computes the whole model", "tokens / (ranks * flops)", "tokens / flops"),
    Mutant(
        "6.1",
        "beside the computation, not of the whole time",
        "return communication / (communication + computation)",
        "return communication / computation",
    ),
    # 6.2 f and g
    Mutant(
        "6.2",
        "float64, whatever is asked for",
        "ctx.group, ctx.grad_dtype = group, reduce_dtype\n        return x\n",
        "ctx.group, ctx.grad_dtype = group, np.float64\n        return x\n",
    ),
    Mutant(
        "6.2",
        "the sum is rounded before it is handed on",
        "return sum_over(gradient, ctx.group, ctx.grad_dtype), None, None",
        "return sum_over(gradient, ctx.group, ctx.grad_dtype).astype(np.float32), None, None",
    ),
    Mutant(
        "6.2",
        "the sum overwrites its input where the dtype is the same",
        'total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same',
        'total = array.astype(dtype, order="C", copy=False)',
    ),
    Mutant(
        "6.2",
        "the order in memory is kept",
        'total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same',
        "total = array.astype(dtype)",
    ),
    Mutant(
        "6.2",
        "the mean over the ranks",
        "all_reduce(total, ReduceOp.SUM, group)",
        "all_reduce(total, ReduceOp.AVG, group)",
    ),
    Mutant(
        "6.2",
        "summed as it comes, then converted",
        """
        total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        """
        total = array.copy(order="C")
        all_reduce(total, ReduceOp.SUM, group)
        return total.astype(dtype)
        """,
    ),
    Mutant(
        "6.2",
        "f's backward does nothing",
        "return sum_over(gradient, ctx.group, ctx.grad_dtype), None, None",
        "return gradient, None, None",
    ),
    Mutant(
        "6.2",
        "the gradient comes rounded",
        """
        ctx.group, ctx.grad_dtype = group, reduce_dtype
        return x
        """,
        """
        ctx.group, ctx.reduce_dtype = group, reduce_dtype
        return x
        """,
    ),
    Mutant(
        "6.2",
        "f all-reduces in forward too",
        """
        ctx.group, ctx.grad_dtype = group, reduce_dtype
        return x
        """,
        """
        ctx.group, ctx.grad_dtype = group, reduce_dtype
        return (sum_over(x, group, reduce_dtype) / group.size).astype(x.dtype)
        """,
    ),
    Mutant(
        "6.2",
        "f's backward sums in place",
        "return sum_over(gradient, ctx.group, ctx.grad_dtype), None, None",
        "all_reduce(gradient, ReduceOp.SUM, ctx.group); return gradient, None, None",
    ),
    Mutant(
        "6.2",
        "g's backward all-reduces again",
        "return ReduceFromGroup.apply(x, group, reduce_dtype, dtype)",
        "return copy_to_group(ReduceFromGroup.apply(x, group, reduce_dtype, dtype), group)",
    ),
    Mutant(
        "6.2",
        "g shares the gradient out",
        """
        return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        # >>> 6.2
        return gradient, None, None, None
        """,
        """
        ctx.group = group
        return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)

    @staticmethod
    def backward(ctx: Context, gradient):
        return gradient / ctx.group.size, None, None, None
        """,
    ),
    Mutant(
        "6.2",
        "g rounds before it sums",
        "return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)",
        "return sum_over(x.astype(dtype or x.dtype), group, dtype or x.dtype)",
    ),
    Mutant(
        "6.2",
        "g sums in place",
        "return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)",
        """if x.dtype != reduce_dtype:
            return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)
        all_reduce(x, ReduceOp.SUM, group)
        return x.astype(dtype or x.dtype)""",
    ),
    Mutant(
        "6.2",
        "g forgets the dtype",
        "return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)",
        "return sum_over(x, group, reduce_dtype)",
    ),
    Mutant(
        "6.2",
        "g ignores reduce_dtype",
        "return ReduceFromGroup.apply(x, group, reduce_dtype, dtype)",
        "return ReduceFromGroup.apply(x, group, np.float64, dtype)",
    ),
    Mutant(
        "6.2",
        "the library's own sum",
        """
        total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        """
        from minidist.parallel import mappings

        return mappings.sum_over(array, group, dtype)
        """,
    ),
    # 6.3 ColumnParallelLinear and RowParallelLinear
    Mutant("6.3", "the columns' f is left out: backward has no all-reduce", "x = enter_heads(x, self)", "pass"),
    Mutant(
        "6.3",
        "as many blocks as all ranks have",
        "x = functional.copy_to_heads(x, len(self.weight.data))",
        "x = functional.copy_to_heads(x, len(self.weight.data) * self.group.size)",
    ),
    Mutant(
        "6.3",
        "blocks first: f all-reduces all of them",
        """
        x = enter_heads(x, self)  # (B, T, C)
        x = functional.copy_to_heads(x, len(self.weight.data))  # (H/N, B, T, C)
        return functional.linear(x, self.weight, self.bias)  # (H/N, B, T, out)
        """,
        """
        x = functional.copy_to_heads(x, len(self.weight.data))
        return functional.linear(enter_heads(x, self), self.weight, self.bias)
        """,
    ),
    Mutant(
        "6.3",
        "the columns' bias is forgotten",
        "return functional.linear(x, self.weight, self.bias)  # (H/N, B, T, out)",
        "return functional.linear(x, self.weight)",
    ),
    Mutant(
        "6.3",
        "the rows' bias on every rank",
        "return leave_blocks(partial, self, y.dtype) + bias  # (B, T, C)",
        "return leave_blocks(partial + bias, self, y.dtype)",
    ),
    Mutant(
        "6.3",
        "the rows' bias on rank 0 alone: the others learn nothing of it",
        "return leave_blocks(partial, self, y.dtype) + bias  # (B, T, C)",
        "return leave_blocks(partial + bias if self.group.rank == 0 else partial, self, y.dtype)",
    ),
    Mutant(
        "6.3",
        "the rows' bias, a share of it on each rank",
        "return leave_blocks(partial, self, y.dtype) + bias  # (B, T, C)",
        "return leave_blocks(partial + bias / self.group.size, self, y.dtype)",
    ),
    Mutant(
        "6.3",
        "partial sums are rounded before they are added",
        "partial = functional.reduce_from_heads(y, self.reduce_dtype)",
        "partial = functional.reduce_from_heads(y)",
    ),
    Mutant(
        "6.3",
        "the result is not rounded",
        "return leave_blocks(partial, self, y.dtype) + bias",
        "return leave_blocks(partial, self, None) + bias",
    ),
    Mutant(
        "6.3",
        "the rows' g is left out",
        "return leave_blocks(partial, self, y.dtype) + bias",
        "return partial + bias",
    ),
    Mutant(
        "6.3",
        "each block is all-reduced, and then they are summed",
        """
        partial = functional.reduce_from_heads(y, self.reduce_dtype)  # (B, T, C), over the blocks here
        return leave_blocks(partial, self, y.dtype) + bias  # (B, T, C)
        """,
        """
        joined = reduce_from_group(y, self.group, self.reduce_dtype, np.float64)
        return functional.reduce_from_heads(joined, y.dtype) + bias
        """,
    ),
    Mutant(
        "6.3",
        "sequence parallelism is forgotten: always f",
        "x = enter_heads(x, self)",
        "x = copy_to_group(x, self.group, self.reduce_dtype)",
    ),
    Mutant(
        "6.3",
        "reduce_dtype is not passed on",
        "x = enter_heads(x, self)",
        "x = copy_to_group(x, self.group) if not self.sequence else enter_heads(x, self)",
    ),
    # 6.4 heads_of and split_qkv
    Mutant("6.4", "what does not divide is rounded down", "if blocks % ranks:", "if False:"),
    Mutant(
        "6.4", "dealt out in turn", "return range(rank * each, (rank + 1) * each)", "return range(rank, blocks, ranks)"
    ),
    Mutant(
        "6.4",
        "an error that does not say what is wrong",
        'raise ValueError(f"{blocks} head blocks cannot be split over {ranks} ranks")',
        'raise ValueError("cannot split")',
    ),
    Mutant(
        "6.4",
        "the wrong numbers are compared",
        "if blocks % ranks:",
        "if ranks % blocks:",
    ),
    Mutant(
        "6.4",
        "the contiguous cut: 3D columns side by side for each head",
        """
        width = len(fused)
        columns = fused.reshape(width, 3, heads, width // heads)  # (C, q k v, H, D)
        blocks = columns.transpose(2, 0, 1, 3)  # (H, C, q k v, D)
        """,
        """
        width = len(fused)
        columns = fused.reshape(width, heads, 3, width // heads)
        blocks = columns.transpose(1, 0, 2, 3)
        """,
    ),
    Mutant(
        "6.4",
        "within a head query, key and value alternate",
        "blocks = columns.transpose(2, 0, 1, 3)  # (H, C, q k v, D)",
        "blocks = columns.transpose(2, 0, 3, 1)",
    ),
    Mutant(
        "6.4",
        "D and H are mixed up",
        """
        columns = fused.reshape(width, 3, heads, width // heads)  # (C, q k v, H, D)
        blocks = columns.transpose(2, 0, 1, 3)  # (H, C, q k v, D)
        """,
        """
        columns = fused.reshape(width, 3, width // heads, heads)
        blocks = columns.transpose(3, 0, 1, 2)
        """,
    ),
    Mutant(
        "6.4",
        "always the first rank's heads",
        "mine = heads_of(rank, ranks, heads)",
        "mine = heads_of(0, ranks, heads)",
    ),
    Mutant(
        "6.4",
        "a view of all heads",
        "return blocks[mine.start : mine.stop].reshape(len(mine), width, -1).copy()",
        "return np.ascontiguousarray(blocks).reshape(heads, width, -1)[mine.start : mine.stop]",
    ),
    Mutant(
        "6.4",
        "always float32",
        "return blocks[mine.start : mine.stop].reshape(len(mine), width, -1).copy()",
        "return blocks[mine.start : mine.stop].reshape(len(mine), width, -1).astype(np.float32)",
    ),
    # 6.5 vocab_parallel_cross_entropy
    Mutant("6.5", "each rank's own largest logit", "all_reduce(largest, ReduceOp.MAX, group)", "pass"),
    Mutant(
        "6.5",
        "no largest logit is taken off: overflow",
        """
        largest = rows.max(axis=(0, 2))  # (tokens,)
        all_reduce(largest, ReduceOp.MAX, group)
        """,
        """
        largest = np.zeros(rows.shape[1], rows.dtype)
        """,
    ),
    Mutant("6.5", "the softmax of each rank by itself", "all_reduce(total, ReduceOp.SUM, group)", "pass"),
    Mutant("6.5", "the target's logit is 0 on the other ranks", "all_reduce(at_target, ReduceOp.SUM, group)", "pass"),
    Mutant(
        "6.5",
        "the sum of all losses, not their mean",
        "return losses.mean(dtype=np.float64).astype(rows.dtype)",
        "return losses.sum(dtype=np.float64).astype(rows.dtype)",
    ),
    Mutant(
        "6.5",
        "the exponentials are summed in float32",
        "total = functional.sum_over_heads(exps.sum(axis=-1))  # (tokens,) float64",
        "total = exps.sum(axis=(0, 2))",
    ),
    Mutant(
        "6.5",
        "the logits are gathered after all",
        """
        largest = rows.max(axis=(0, 2))  # (tokens,)
        all_reduce(largest, ReduceOp.MAX, group)
        """,
        """
        everything = np.empty((group.size, *rows.shape), rows.dtype)
        all_gather_into_tensor(everything, np.ascontiguousarray(rows), group)
        largest = everything.max(axis=(0, 1, 3))
        """,
    ),
    Mutant(
        "6.5",
        "the losses of all tokens come in float64",
        "losses = np.log(total) + largest - at_target.astype(rows.dtype)  # (tokens,)",
        "losses = np.log(total.astype(np.float64)) + largest - at_target",
    ),
    Mutant(
        "6.5",
        "the gradient at the target is not one less",
        "grad_logits[block, token, column] -= share",
        "pass",
    ),
    Mutant(
        "6.5",
        "one less at the target, whatever its share",
        "grad_logits[block, token, column] -= share",
        "grad_logits[block, token, column] -= 1",
    ),
    Mutant(
        "6.5",
        "the gradient of the loss is taken to be 1",
        "share = gradient / probabilities.shape[1]  # of one token in the mean",
        "share = np.float32(1 / probabilities.shape[1])",
    ),
    Mutant(
        "6.5",
        "probabilities among this rank's tokens alone",
        "ctx.save_for_backward(exps / total[:, None], token, block, column)",
        "ctx.save_for_backward(exps / exps.sum(axis=(0, 2))[:, None], token, block, column)",
    ),
    Mutant(
        "6.5",
        "the loss goes through f: its gradient counts once for each rank",
        "return VocabParallelCrossEntropy.apply(logits, targets, vocab, group)",
        "return copy_to_group(VocabParallelCrossEntropy.apply(logits, targets, vocab, group), group)",
    ),
    Mutant(
        "6.5",
        "all ranks' gradients are summed in backward",
        "return VocabParallelCrossEntropy.apply(logits, targets, vocab, group)",
        "return VocabParallelCrossEntropy.apply(copy_to_group(logits, group), targets, vocab, group)",
    ),
    Mutant(
        "6.5",
        "the library's own",
        "return VocabParallelCrossEntropy.apply(logits, targets, vocab, group)",
        """from minidist.parallel import tensor

    return tensor.vocab_parallel_cross_entropy(logits, targets, vocab, group)""",
    ),
    # 6.6 all_gather_in_group and reduce_scatter_in_group
    Mutant(
        "6.6",
        "always along the first axis",
        "return np.concatenate(list(stacked), axis)",
        "return np.concatenate(list(stacked))",
    ),
    Mutant(
        "6.6",
        "gathered in float64: twice the bytes",
        """
        stacked = np.empty((group.size, *array.shape), array.dtype)  # (N, ...)
        all_gather_into_tensor(stacked, np.ascontiguousarray(array), group)
        return np.concatenate(list(stacked), axis)
        """,
        """
        stacked = np.empty((group.size, *array.shape))
        all_gather_into_tensor(stacked, array.astype(np.float64, order="C"), group)
        return np.concatenate(list(stacked.astype(array.dtype)), axis)
        """,
    ),
    Mutant(
        "6.6",
        "parts are cut along the memory, not the axis",
        'parts = np.stack(np.split(array.astype(dtype, order="C"), group.size, axis))  # (N, ...)',
        """np.split(array, group.size, axis)
    shape = list(array.shape)
    shape[axis] //= group.size
    parts = array.astype(dtype, order="C").reshape(group.size, *shape)""",
    ),
    Mutant(
        "6.6",
        "the mean of the parts",
        "reduce_scatter_tensor(mine, parts, ReduceOp.SUM, group)",
        "reduce_scatter_tensor(mine, parts, ReduceOp.AVG, group)",
    ),
    Mutant(
        "6.6",
        "an all-reduce, of which the part is cut out",
        """
        mine = np.empty(parts.shape[1:], dtype)
        reduce_scatter_tensor(mine, parts, ReduceOp.SUM, group)
        return mine
        """,
        """
        all_reduce(parts, ReduceOp.SUM, group)
        return parts[group.rank].copy()
        """,
    ),
    Mutant(
        "6.6",
        "what does not divide is cut in parts that differ, and filled up",
        'parts = np.stack(np.split(array.astype(dtype, order="C"), group.size, axis))  # (N, ...)',
        """filled = -(-array.shape[axis] // group.size) * group.size
    array = np.take(array, np.arange(filled) % max(array.shape[axis], 1), axis) if array.size else array
    parts = np.stack(np.split(array.astype(dtype, order="C"), group.size, axis))""",
    ),
    Mutant(
        "6.6",
        "all-gather has split for its backward",
        "return sum_and_split(gradient, ctx.group, ctx.axis, ctx.grad_dtype), None, None, None",
        """part = np.split(gradient, ctx.group.size, ctx.axis)[ctx.group.rank]
        return part.copy(), None, None, None""",
    ),
    Mutant(
        "6.6",
        "the gradient comes rounded",
        "ctx.group, ctx.axis, ctx.grad_dtype = group, axis, reduce_dtype",
        "ctx.group, ctx.axis, ctx.grad_dtype = group, axis, x.dtype",
    ),
    Mutant(
        "6.6",
        "reduce-scatter's backward fills up with zeros",
        "return join_parts(gradient, ctx.group, ctx.axis), None, None, None, None",
        """parts = [np.zeros_like(gradient) for _ in range(ctx.group.size)]
        parts[ctx.group.rank] = gradient
        return np.concatenate(parts, ctx.axis), None, None, None, None""",
    ),
    Mutant(
        "6.6",
        "reduce-scatter rounds before it sums",
        "return sum_and_split(x, group, axis, reduce_dtype).astype(dtype or x.dtype)",
        "return sum_and_split(x, group, axis, dtype or x.dtype)",
    ),
    Mutant(
        "6.6",
        "reduce-scatter forgets the dtype",
        "return sum_and_split(x, group, axis, reduce_dtype).astype(dtype or x.dtype)",
        "return sum_and_split(x, group, axis, reduce_dtype)",
    ),
    # 6.7 global_grad_norm
    Mutant("6.7", "copies count on every rank", "(parameter.sharded or group.rank == 0)", "True"),
    Mutant(
        "6.7",
        "everything counts on rank 0 alone",
        "(parameter.sharded or group.rank == 0)",
        "group.rank == 0",
    ),
    Mutant("6.7", "copies do not count", "(parameter.sharded or group.rank == 0)", "parameter.sharded"),
    Mutant(
        "6.7",
        "norms are added, not squares",
        """
        all_reduce(squares, ReduceOp.SUM, group)
        return float(np.sqrt(squares[0]))
        """,
        """
        norm = np.sqrt(squares)
        all_reduce(norm, ReduceOp.SUM, group)
        return float(norm[0])
        """,
    ),
    Mutant("6.7", "this rank's norm", "all_reduce(squares, ReduceOp.SUM, group)", "pass"),
    Mutant("6.7", "the largest rank's norm", "ReduceOp.SUM", "ReduceOp.MAX"),
    Mutant(
        "6.7",
        "squares overflow in float32",
        "parameter.grad.astype(np.float64) ** 2",
        "parameter.grad ** 2",
    ),
    Mutant("6.7", "a parameter without a gradient is an error", "parameter.grad is not None and ", ""),
    Mutant(
        "6.7",
        "an all-reduce for each parameter",
        """
            squares += np.sum(parameter.grad.astype(np.float64) ** 2)
    all_reduce(squares, ReduceOp.SUM, group)
        """,
        """
            squares += np.sum(parameter.grad.astype(np.float64) ** 2)
    for _ in parameters:
        each = squares / len(parameters)
        all_reduce(each, ReduceOp.SUM, group)
    squares = each * len(parameters)
        """,
    ),
    # 6.8 train_row_parallel
    Mutant(
        "6.8",
        "the mean over the ranks: right bias, wrong products",
        """
        all_reduce(y, ReduceOp.SUM, group)
        y += bias
        """,
        """
        y += bias
        all_reduce(y, ReduceOp.AVG, group)
        """,
    ),
    Mutant("6.8", "the bias is left out", "y += bias", "pass"),
    Mutant(
        "6.8",
        "a second all-reduce for the bias",
        "y += bias",
        "shared = bias / group.size; all_reduce(shared, ReduceOp.SUM, group); y += shared",
    ),
    # 6.9 mlp_of_tokens
    Mutant(
        "6.9",
        "the bias of LayerNorm is forgotten",
        "bias = copy_parameter_to_group(norm.bias, group)",
        "bias = norm.bias",
    ),
    Mutant(
        "6.9",
        "f on the tokens, not on the parameters",
        "normal = functional.layer_norm(x, gain, bias)  # (B, T/N, C)",
        "normal = functional.layer_norm(copy_parameter_to_group(x, group), norm.gain, norm.bias)",
    ),
    Mutant(
        "6.9",
        "the mean of the ranks' gradients",
        """
        gain = copy_parameter_to_group(norm.gain, group)
        bias = copy_parameter_to_group(norm.bias, group)
        """,
        """
        gain = copy_parameter_to_group(norm.gain, group) * (1 / group.size)
        gain = gain * group.size
        bias = copy_parameter_to_group(norm.bias * (1 / group.size), group) * 1.0
        """,
    ),
    Mutant(
        "6.9",
        "what the norm puts out is shared too",
        "normal = functional.layer_norm(x, gain, bias)  # (B, T/N, C)",
        "normal = copy_parameter_to_group(functional.layer_norm(x, gain, bias), group)",
    ),
]
