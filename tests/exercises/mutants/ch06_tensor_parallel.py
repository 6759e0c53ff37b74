"""Mutants for chapter 6."""

from minidist.course.authoring.mutants import Mutant

MUTANTS = [
    # 6.1 f and g
    Mutant(
        "6.1",
        "ignores reduce_dtype: always float64",
        """
        ctx.group, ctx.grad_dtype = group, reduce_dtype
        return x
        """,
        """
        ctx.group, ctx.grad_dtype = group, np.float64
        return x
        """,
    ),
    Mutant(
        "6.1",
        "rounds the sum before passing it on",
        "return sum_over(gradient, ctx.group, ctx.grad_dtype), None, None",
        "return sum_over(gradient, ctx.group, ctx.grad_dtype).astype(np.float32), None, None",
    ),
    Mutant(
        "6.1",
        "overwrites the input if the dtype is the same",
        'total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same',
        'total = array.astype(dtype, order="C", copy=False)',
    ),
    Mutant(
        "6.1",
        "keeps the memory order",
        'total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same',
        "total = array.astype(dtype)",
    ),
    Mutant(
        "6.1",
        "the mean over the ranks",
        "all_reduce(total, ReduceOp.SUM, group)",
        "all_reduce(total, ReduceOp.AVG, group)",
    ),
    Mutant(
        "6.1",
        "sums in the given dtype, then converts",
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
        "6.1",
        "f's backward does nothing",
        "return sum_over(gradient, ctx.group, ctx.grad_dtype), None, None",
        "return gradient, None, None",
    ),
    Mutant(
        "6.1",
        "gets the gradient rounded",
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
        "6.1",
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
        "6.1",
        "f's backward sums in place",
        "return sum_over(gradient, ctx.group, ctx.grad_dtype), None, None",
        "all_reduce(gradient, ReduceOp.SUM, ctx.group); return gradient, None, None",
    ),
    Mutant(
        "6.1",
        "g's backward all-reduces again",
        "return ReduceFromGroup.apply(x, group, reduce_dtype, dtype)",
        "return copy_to_group(ReduceFromGroup.apply(x, group, reduce_dtype, dtype), group)",
    ),
    Mutant(
        "6.1",
        "g divides the gradient by the ranks",
        """
        return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        # >>> 6.1
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
        "6.1",
        "g rounds before it sums",
        "return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)",
        "return sum_over(x.astype(dtype or x.dtype), group, dtype or x.dtype)",
    ),
    Mutant(
        "6.1",
        "g sums in place",
        "return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)",
        """if x.dtype != reduce_dtype:
            return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)
        all_reduce(x, ReduceOp.SUM, group)
        return x.astype(dtype or x.dtype)""",
    ),
    Mutant(
        "6.1",
        "g forgets the dtype",
        "return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)",
        "return sum_over(x, group, reduce_dtype)",
    ),
    Mutant(
        "6.1",
        "g ignores reduce_dtype",
        "return ReduceFromGroup.apply(x, group, reduce_dtype, dtype)",
        "return ReduceFromGroup.apply(x, group, np.float64, dtype)",
    ),
    Mutant(
        "6.1",
        "the library's own sum",
        """
        total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        """
        from minidist.parallel.tools import mappings

        return mappings.sum_over(array, group, dtype)
        """,
    ),
    Mutant(
        "6.1",
        "sums in float64 whatever was asked for",
        """
        total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        """
        total = array.astype(np.float64, order="C")
        all_reduce(total, ReduceOp.SUM, group)
        return total.astype(dtype)
        """,
        kind="dtype",
    ),
    Mutant(
        "6.1",
        "the sum in a new array of NumPy's default dtype",
        """
        total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        """
        total = np.empty(array.shape)
        total[...] = array
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        kind="dtype",
    ),
    Mutant(
        "6.1",
        "g rounds to float32 unless told otherwise",
        "return sum_over(x, group, reduce_dtype).astype(dtype or x.dtype)",
        "return sum_over(x, group, reduce_dtype).astype(dtype or np.float32)",
        kind="dtype",
    ),
    Mutant(
        "6.1",
        "one buffer for all sums of a shape",
        """
        total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        """
        total = vars(sum_over).setdefault(f"{array.shape} {dtype}", np.empty(array.shape, dtype))
        total[...] = array
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        kind="second call",
    ),
    Mutant(
        "6.1",
        "remembers the first sum of a shape",
        """
        total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        """
        total = array.astype(dtype, order="C")
        all_reduce(total, ReduceOp.SUM, group)
        return vars(sum_over).setdefault(f"{array.shape} {dtype}", total).copy()
        """,
        kind="second call",
    ),
    Mutant(
        "6.1",
        "the latest call's reduce_dtype in every backward",
        """
        ctx.group, ctx.grad_dtype = group, reduce_dtype
        return x
        # <<<

    @staticmethod
    def backward(ctx: Context, gradient):
        # >>> 6.1
        return sum_over(gradient, ctx.group, ctx.grad_dtype), None, None
        """,
        """
        ctx.group, ctx.grad_dtype, CopyToGroup.latest = group, reduce_dtype, reduce_dtype
        return x

    @staticmethod
    def backward(ctx: Context, gradient):
        return sum_over(gradient, ctx.group, CopyToGroup.latest), None, None
        """,
        kind="second call",
    ),
    Mutant(
        "6.1",
        "a single rank gets its own array back",
        """
        total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        """
        total = array.astype(dtype, order="C", copy=group.size > 1)
        all_reduce(total, ReduceOp.SUM, group)
        return total
        """,
        kind="lent",
    ),
    Mutant(
        "6.1",
        "an asynchronous sum that nobody waits for",
        "all_reduce(total, ReduceOp.SUM, group)",
        "all_reduce(total, ReduceOp.SUM, group, async_op=True)",
        kind="lent",
    ),
    Mutant(
        "6.1",
        "no sum of empty arrays",
        'total = array.astype(dtype, order="C")  # a copy, even where the dtype is the same',
        'total = array.astype(dtype, order="C"); array.max()',
        kind="edge",
    ),
    # 6.2 ColumnParallelLinear and RowParallelLinear
    Mutant("6.2", "skips the columns' f: backward has no all-reduce", "x = enter_heads(x, self)", "pass"),
    Mutant(
        "6.2",
        "as many heads as all ranks have",
        "x = functional.copy_to_heads(x, len(self.weight.data))",
        "x = functional.copy_to_heads(x, len(self.weight.data) * self.group.size)",
    ),
    Mutant(
        "6.2",
        "heads first: f all-reduces all of them",
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
        "6.2",
        "forgets the columns' bias",
        "return functional.linear(x, self.weight, self.bias)  # (H/N, B, T, out)",
        "return functional.linear(x, self.weight)",
    ),
    Mutant(
        "6.2",
        "the rows' bias on every rank",
        "return leave_heads(partial, self, y.dtype) + bias  # (B, T, C)",
        "return leave_heads(partial + bias, self, y.dtype)",
    ),
    Mutant(
        "6.2",
        "the rows' bias only on rank 0: it gets no gradient elsewhere",
        "return leave_heads(partial, self, y.dtype) + bias  # (B, T, C)",
        "return leave_heads(partial + bias if self.group.rank == 0 else partial, self, y.dtype)",
    ),
    Mutant(
        "6.2",
        "an equal share of the rows' bias on each rank",
        "return leave_heads(partial, self, y.dtype) + bias  # (B, T, C)",
        "return leave_heads(partial + bias / self.group.size, self, y.dtype)",
    ),
    Mutant(
        "6.2",
        "rounds partial sums before adding them",
        "partial = functional.reduce_from_heads(y, self.reduce_dtype)",
        "partial = functional.reduce_from_heads(y)",
    ),
    Mutant(
        "6.2",
        "does not round the result",
        "return leave_heads(partial, self, y.dtype) + bias",
        "return leave_heads(partial, self, None) + bias",
    ),
    Mutant(
        "6.2",
        "skips the rows' g",
        "return leave_heads(partial, self, y.dtype) + bias",
        "return partial + bias",
    ),
    Mutant(
        "6.2",
        "all-reduces each head, then sums them",
        """
        partial = functional.reduce_from_heads(y, self.reduce_dtype)  # (B, T, C), over the heads here
        return leave_heads(partial, self, y.dtype) + bias  # (B, T, C)
        """,
        """
        joined = reduce_from_group(y, self.group, self.reduce_dtype, np.float64)
        return functional.reduce_from_heads(joined, y.dtype) + bias
        """,
    ),
    Mutant(
        "6.2",
        "ignores sequence parallelism: always f",
        "x = enter_heads(x, self)",
        "x = copy_to_group(x, self.group, self.reduce_dtype)",
    ),
    Mutant(
        "6.2",
        "does not pass reduce_dtype on",
        "x = enter_heads(x, self)",
        "x = copy_to_group(x, self.group) if not self.sequence else enter_heads(x, self)",
    ),
    Mutant(
        "6.2",
        "each head's product is rounded to 16 bits",
        "y = functional.linear(x, self.weight, partial=True)",
        "y = functional.linear(x, self.weight)",
        kind="dtype",
    ),
    Mutant(
        "6.2",
        "the result is always float32",
        "return leave_heads(partial, self, y.dtype) + bias",
        "return leave_heads(partial, self, np.float32) + bias",
        kind="dtype",
    ),
    Mutant(
        "6.2",
        "keeps the first input",
        "x = functional.copy_to_heads(x, len(self.weight.data))",
        'x = vars(self).setdefault("x", functional.copy_to_heads(x, len(self.weight.data)))',
        kind="second call",
    ),
    Mutant(
        "6.2",
        "all layers share the weight of the first",
        "y = functional.linear(x, self.weight, partial=True)",
        """RowParallelLinear.shared = getattr(RowParallelLinear, "shared", self.weight)
        y = functional.linear(x, RowParallelLinear.shared, partial=True)""",
        kind="second call",
    ),
    Mutant(
        "6.2",
        "clears its output when the next one is made",
        "return functional.linear(x, self.weight, self.bias)  # (H/N, B, T, out)",
        """if hasattr(self, "latest"):
            self.latest.data.fill(0)
        self.latest = functional.linear(x, self.weight, self.bias)
        return self.latest""",
        kind="second call",
    ),
    Mutant(
        "6.2",
        "adds the bias into the weight it was lent",
        "y = functional.linear(x, self.weight, partial=True)",
        "y = functional.linear(x, self.weight, partial=True); self.weight.data *= 2",
        kind="lent",
    ),
    Mutant("6.2", "at least two heads", "len(self.weight.data))", "max(len(self.weight.data), 2))", kind="edge"),
    # 6.3 train_row_parallel
    Mutant(
        "6.3",
        "the mean over the ranks: correct bias, wrong products",
        """
        all_reduce(y, ReduceOp.SUM, group)
        y += bias
        """,
        """
        y += bias
        all_reduce(y, ReduceOp.AVG, group)
        """,
    ),
    Mutant("6.3", "skips the bias", "y += bias", "pass"),
    Mutant(
        "6.3",
        "a second all-reduce for the bias",
        "y += bias",
        "shared = bias / group.size; all_reduce(shared, ReduceOp.SUM, group); y += shared",
    ),
    Mutant(
        "6.3",
        "sums in float32",
        "y = features @ weight  # (samples, outputs), this rank's partial sum",
        "y = (features @ weight).astype(np.float32)",
        kind="dtype",
    ),
    Mutant(
        "6.3",
        "one array for the sums of all calls",
        "y += bias",
        'y = vars(train_row_parallel).setdefault("y", y) + bias',
        kind="second call",
    ),
    Mutant(
        "6.3",
        "adds the bias to the features it was lent",
        "y += bias",
        "y += bias; features += 1e-3",
        kind="lent",
    ),
    Mutant(
        "6.3",
        "a rank without features takes no part",
        """
        all_reduce(y, ReduceOp.SUM, group)
        y += bias
        """,
        """
        if features.shape[1]:
            all_reduce(y, ReduceOp.SUM, group)
        y += bias
        """,
        kind="edge",
    ),
    # 6.4 heads_of and split_qkv
    Mutant("6.4", "rounds down if the ranks do not divide the heads", "if heads % ranks:", "if False:"),
    Mutant(
        "6.4", "dealt out in turn", "return range(rank * each, (rank + 1) * each)", "return range(rank, heads, ranks)"
    ),
    Mutant(
        "6.4",
        "an error without the two numbers",
        'raise ValueError(f"{heads} heads cannot be split over {ranks} ranks")',
        'raise ValueError("cannot split")',
    ),
    Mutant(
        "6.4",
        "checks whether the heads divide the ranks",
        "if heads % ranks:",
        "if ranks % heads:",
    ),
    Mutant(
        "6.4",
        "the contiguous cut: 3D adjacent columns for each head",
        """
        width = len(fused)
        columns = fused.reshape(width, 3, heads, width // heads)  # (C, q k v, H, D)
        by_head = columns.transpose(2, 0, 1, 3)  # (H, C, q k v, D)
        """,
        """
        width = len(fused)
        columns = fused.reshape(width, heads, 3, width // heads)
        by_head = columns.transpose(1, 0, 2, 3)
        """,
    ),
    Mutant(
        "6.4",
        "interleaves queries, keys and values within a head",
        "by_head = columns.transpose(2, 0, 1, 3)  # (H, C, q k v, D)",
        "by_head = columns.transpose(2, 0, 3, 1)",
    ),
    Mutant(
        "6.4",
        "mixes up D and H",
        """
        columns = fused.reshape(width, 3, heads, width // heads)  # (C, q k v, H, D)
        by_head = columns.transpose(2, 0, 1, 3)  # (H, C, q k v, D)
        """,
        """
        columns = fused.reshape(width, 3, width // heads, heads)
        by_head = columns.transpose(3, 0, 1, 2)
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
        "return by_head[mine.start : mine.stop].reshape(len(mine), width, -1).copy()",
        "return np.ascontiguousarray(by_head).reshape(heads, width, -1)[mine.start : mine.stop]",
    ),
    Mutant(
        "6.4",
        "always float32",
        "return by_head[mine.start : mine.stop].reshape(len(mine), width, -1).copy()",
        "return by_head[mine.start : mine.stop].reshape(len(mine), width, -1).astype(np.float32)",
        kind="dtype",
    ),
    Mutant(
        "6.4",
        "through an array of NumPy's default dtype",
        "return by_head[mine.start : mine.stop].reshape(len(mine), width, -1).copy()",
        """found = np.zeros((len(mine), width, 3 * (width // heads)))
    found[...] = by_head[mine.start : mine.stop].reshape(len(mine), width, -1)
    return found""",
        kind="dtype",
    ),
    Mutant(
        "6.4",
        "remembers the first checkpoint of a shape",
        "return by_head[mine.start : mine.stop].reshape(len(mine), width, -1).copy()",
        """found = by_head[mine.start : mine.stop].reshape(len(mine), width, -1)
    return vars(split_qkv).setdefault(f"{fused.shape} {heads} {rank} {ranks}", found.copy()).astype(fused.dtype)""",
        kind="second call",
    ),
    Mutant(
        "6.4",
        "copies only if it has to: with one head the checkpoint itself",
        "return by_head[mine.start : mine.stop].reshape(len(mine), width, -1).copy()",
        "return np.ascontiguousarray(by_head[mine.start : mine.stop].reshape(len(mine), width, -1))",
        kind="lent",
    ),
    Mutant(
        "6.4",
        "keeps the memory order",
        "return by_head[mine.start : mine.stop].reshape(len(mine), width, -1).copy()",
        'return by_head[mine.start : mine.stop].reshape(len(mine), width, -1).copy("K")',
        kind="edge",
    ),
    Mutant("6.4", "refuses only too few heads", "if heads % ranks:", "if heads < ranks:", kind="edge"),
    # 6.5 vocab_parallel_cross_entropy
    Mutant("6.5", "each rank's own largest logit", "all_reduce(largest, ReduceOp.MAX, group)", "pass"),
    Mutant(
        "6.5",
        "does not subtract the largest logit: overflow",
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
        "sums the exponentials in float32",
        "total = functional.sum_over_heads(exps.sum(axis=-1))  # (tokens,) float64",
        "total = exps.sum(axis=(0, 2))",
    ),
    Mutant(
        "6.5",
        "gathers the logits after all",
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
        "computes the tokens' losses in float64",
        "losses = np.log(total) + largest - at_target.astype(rows.dtype)  # (tokens,)",
        "losses = np.log(total.astype(np.float64)) + largest - at_target",
    ),
    Mutant(
        "6.5",
        "does not subtract one at the target",
        "grad_logits[head, token, column] -= share",
        "pass",
    ),
    Mutant(
        "6.5",
        "subtracts one at the target, not its share",
        "grad_logits[head, token, column] -= share",
        "grad_logits[head, token, column] -= 1",
    ),
    Mutant(
        "6.5",
        "takes the gradient of the loss to be 1",
        "share = gradient / probabilities.shape[1]  # of one token in the mean",
        "share = np.float32(1 / probabilities.shape[1])",
    ),
    Mutant(
        "6.5",
        "probabilities over only this rank's part of the vocabulary",
        "exact=(exps / total[:, None],)",
        "exact=(exps / exps.sum(axis=(0, 2))[:, None],)",
    ),
    Mutant(
        "6.5",
        "passes the loss through f: its gradient counts once per rank",
        "return VocabParallelCrossEntropy.apply(logits, targets, vocab, group)",
        "return copy_to_group(VocabParallelCrossEntropy.apply(logits, targets, vocab, group), group)",
    ),
    Mutant(
        "6.5",
        "sums all ranks' gradients in backward",
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
    Mutant(
        "6.5",
        "always float32",
        "total = total.astype(rows.dtype)",
        "total = total.astype(np.float32)",
        kind="dtype",
    ),
    Mutant(
        "6.5",
        "probabilities in 16 bits",
        "ctx.save_for_backward(token, head, column, exact=(exps / total[:, None],))",
        "ctx.save_for_backward(token, head, column, exps / total[:, None])",
        kind="dtype",
    ),
    Mutant(
        "6.5",
        "a loss rounded to 16 bits",
        "ctx.rounds, ctx.shape_of_logits = False, logits.shape",
        "ctx.shape_of_logits = logits.shape",
        kind="dtype",
    ),
    Mutant(
        "6.5",
        "the largest logits in float64",
        "largest = rows.max(axis=(0, 2))  # (tokens,)",
        "largest = np.full(rows.shape[1], -np.inf); np.maximum(largest, rows.max(axis=(0, 2)), out=largest)",
        kind="dtype",
    ),
    Mutant(
        "6.5",
        "the targets of the first call",
        "rows, token, head, column = rows_and_targets(logits, targets, vocab, group)",
        """first = vars(vocab_parallel_cross_entropy).setdefault(f"{logits.shape}{vocab}", targets.copy())
        rows, token, head, column = rows_and_targets(logits, first, vocab, group)""",
        kind="second call",
    ),
    Mutant(
        "6.5",
        "keeps probabilities in one array for all calls",
        "ctx.save_for_backward(token, head, column, exact=(exps / total[:, None],))",
        """own = vars(vocab_parallel_cross_entropy).setdefault(f"{exps.shape}{exps.dtype}", np.empty_like(exps))
        own[...] = exps / total[:, None]
        ctx.save_for_backward(token, head, column, exact=(own,))""",
        kind="second call",
    ),
    Mutant(
        "6.5",
        "overwrites the logits with the probabilities",
        "ctx.rounds, ctx.shape_of_logits = False, logits.shape",
        "ctx.rounds, ctx.shape_of_logits = False, logits.shape; logits[...] = exps.reshape(logits.shape)",
        kind="lent",
    ),
    Mutant(
        "6.5",
        "the largest logit is at least 0",
        "largest = rows.max(axis=(0, 2))  # (tokens,)",
        "largest = np.maximum(rows.max(axis=(0, 2)), 0)",
        kind="edge",
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
        "gathers in float64: twice the bytes",
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
        "cuts parts along memory, not along the axis",
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
        "slices the part out of an all-reduce",
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
        "pads an axis that the ranks do not divide",
        'parts = np.stack(np.split(array.astype(dtype, order="C"), group.size, axis))  # (N, ...)',
        """filled = -(-array.shape[axis] // group.size) * group.size
    array = np.take(array, np.arange(filled) % max(array.shape[axis], 1), axis) if array.size else array
    parts = np.stack(np.split(array.astype(dtype, order="C"), group.size, axis))""",
    ),
    Mutant(
        "6.6",
        "the all-gather's backward only splits",
        "return sum_and_split(gradient, ctx.group, ctx.axis, ctx.grad_dtype), None, None, None",
        """part = np.split(gradient, ctx.group.size, ctx.axis)[ctx.group.rank]
        return part.copy(), None, None, None""",
    ),
    Mutant(
        "6.6",
        "gets the gradient rounded",
        "ctx.group, ctx.axis, ctx.grad_dtype = group, axis, reduce_dtype",
        "ctx.group, ctx.axis, ctx.grad_dtype = group, axis, x.dtype",
    ),
    Mutant(
        "6.6",
        "the reduce-scatter's backward pads with zeros",
        "return join_parts(gradient, ctx.group, ctx.axis), None, None, None, None",
        """parts = [np.zeros_like(gradient) for _ in range(ctx.group.size)]
        parts[ctx.group.rank] = gradient
        return np.concatenate(parts, ctx.axis), None, None, None, None""",
    ),
    Mutant(
        "6.6",
        "the reduce-scatter rounds before summing",
        "return sum_and_split(x, group, axis, reduce_dtype).astype(dtype or x.dtype)",
        "return sum_and_split(x, group, axis, dtype or x.dtype)",
    ),
    Mutant(
        "6.6",
        "the reduce-scatter forgets the dtype",
        "return sum_and_split(x, group, axis, reduce_dtype).astype(dtype or x.dtype)",
        "return sum_and_split(x, group, axis, reduce_dtype)",
    ),
    Mutant(
        "6.6",
        "gathers into NumPy's default dtype",
        "stacked = np.empty((group.size, *array.shape), array.dtype)",
        "stacked = np.empty((group.size, *array.shape))",
        kind="dtype",
    ),
    Mutant(
        "6.6",
        "receives its part in NumPy's default dtype",
        "mine = np.empty(parts.shape[1:], dtype)",
        "mine = np.empty(parts.shape[1:])",
        kind="dtype",
    ),
    Mutant(
        "6.6",
        "the reduce-scatter rounds to float32 unless told otherwise",
        "return sum_and_split(x, group, axis, reduce_dtype).astype(dtype or x.dtype)",
        "return sum_and_split(x, group, axis, reduce_dtype).astype(dtype or np.float32)",
        kind="dtype",
    ),
    Mutant(
        "6.6",
        "one array for all parts of a shape",
        "mine = np.empty(parts.shape[1:], dtype)",
        'mine = vars(sum_and_split).setdefault(f"{parts.shape}{dtype}", np.empty(parts.shape[1:], dtype))',
        kind="second call",
    ),
    Mutant(
        "6.6",
        "the latest call's axis in every backward",
        "return sum_and_split(gradient, ctx.group, ctx.axis, ctx.grad_dtype), None, None, None",
        """axis = vars(all_gather_in_group).setdefault("axis", ctx.axis)
        return sum_and_split(gradient, ctx.group, axis, ctx.grad_dtype), None, None, None""",
        kind="second call",
    ),
    Mutant(
        "6.6",
        "a single rank gets its own array back",
        "return np.concatenate(list(stacked), axis)",
        "return np.concatenate(list(stacked), axis) if group.size > 1 else array",
        kind="lent",
    ),
    Mutant(
        "6.6",
        "does not wait for its part",
        "reduce_scatter_tensor(mine, parts, ReduceOp.SUM, group)",
        "reduce_scatter_tensor(mine, parts, ReduceOp.SUM, group, async_op=True)",
        kind="lent",
    ),
    Mutant(
        "6.6",
        "refuses empty parts",
        "reduce_scatter_tensor(mine, parts, ReduceOp.SUM, group)",
        "reduce_scatter_tensor(mine, parts, ReduceOp.SUM, group); mine.max()",
        kind="edge",
    ),
    # 6.7 mlp_of_tokens
    Mutant(
        "6.7",
        "forgets LayerNorm's bias",
        "bias = copy_parameter_to_group(norm.bias, group)",
        "bias = norm.bias",
    ),
    Mutant(
        "6.7",
        "f on the tokens, not on the parameters",
        "normal = functional.layer_norm(x, gain, bias)  # (B, T/N, C)",
        "normal = functional.layer_norm(copy_parameter_to_group(x, group), norm.gain, norm.bias)",
    ),
    Mutant(
        "6.7",
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
        "6.7",
        "f on the norm's output too",
        "normal = functional.layer_norm(x, gain, bias)  # (B, T/N, C)",
        "normal = copy_parameter_to_group(functional.layer_norm(x, gain, bias), group)",
    ),
    Mutant(
        "6.7",
        "sums the gradients over the ranks in float32",
        """
        gain = copy_parameter_to_group(norm.gain, group)
        bias = copy_parameter_to_group(norm.bias, group)
        """,
        """
        gain = copy_parameter_to_group(norm.gain, group, np.float32)
        bias = copy_parameter_to_group(norm.bias, group, np.float32)
        """,
        kind="dtype",
    ),
    Mutant(
        "6.7",
        "copies the gain in its first call only",
        "gain = copy_parameter_to_group(norm.gain, group)",
        'gain = vars(mlp_of_tokens).setdefault("gain", copy_parameter_to_group(norm.gain, group))',
        kind="second call",
    ),
    # 6.8 global_grad_norm
    Mutant("6.8", "replicas count on every rank", "(parameter.sharded or group.rank == 0)", "True"),
    Mutant(
        "6.8",
        "everything counts only on rank 0",
        "(parameter.sharded or group.rank == 0)",
        "group.rank == 0",
    ),
    Mutant("6.8", "replicas do not count", "(parameter.sharded or group.rank == 0)", "parameter.sharded"),
    Mutant(
        "6.8",
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
    Mutant("6.8", "this rank's norm", "all_reduce(squares, ReduceOp.SUM, group)", "pass"),
    Mutant("6.8", "the largest rank's norm", "ReduceOp.SUM", "ReduceOp.MAX"),
    Mutant(
        "6.8",
        "squares overflow in float32",
        "parameter.grad.astype(np.float64) ** 2",
        "parameter.grad ** 2",
        kind="dtype",
    ),
    Mutant("6.8", "a parameter without a gradient is an error", "parameter.grad is not None and ", ""),
    Mutant(
        "6.8",
        "one all-reduce per parameter",
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
    Mutant(
        "6.8",
        "adds to the squares of earlier calls",
        "squares = np.zeros(1)",
        'squares = vars(global_grad_norm).setdefault("squares", np.zeros(1))',
        kind="second call",
    ),
    Mutant(
        "6.8",
        "squares the gradients themselves",
        "np.sum(parameter.grad.astype(np.float64) ** 2)",
        "np.sum(np.square(parameter.grad, out=parameter.grad), dtype=np.float64)",
        kind="lent",
    ),
    Mutant(
        "6.8",
        "divides by the largest, of which an empty gradient has none",
        "squares += np.sum(parameter.grad.astype(np.float64) ** 2)",
        """largest = max(np.abs(parameter.grad.astype(np.float64)).max(), 1e-300)
            squares += np.sum((parameter.grad / largest) ** 2) * largest**2""",
        kind="edge",
    ),
    # 6.9 worksheet
    Mutant("6.9", "two all-reduces per layer: forgets backward", "return 4 * layers", "return 2 * layers"),
    Mutant("6.9", "three all-reduces per layer: forward only once", "return 4 * layers", "return 3 * layers"),
    Mutant(
        "6.9",
        "the size of the weight, not of the activations",
        "return samples * tokens * width * element_bytes",
        "return width * width * element_bytes",
    ),
    Mutant(
        "6.9",
        "one sample",
        "return samples * tokens * width * element_bytes",
        "return tokens * width * element_bytes",
    ),
    Mutant("6.9", "half of the ring", "* 2 * (ranks - 1) / ranks * each", "* (ranks - 1) / ranks * each"),
    Mutant("6.9", "the full buffer to every rank", "* 2 * (ranks - 1) / ranks * each", "* 2 * (ranks - 1) * each"),
    Mutant(
        "6.9",
        "the fast link for as many ranks as are in the node",
        "return nbytes / (inside if ranks <= node else between)",
        "return nbytes * (min(ranks, node) / inside + max(ranks - node, 0) / between) / ranks",
    ),
    Mutant("6.9", "a full node counts as two", "ranks <= node", "ranks < node"),
    Mutant("6.9", "every rank computes the full model", "tokens / (ranks * flops)", "tokens / flops"),
    Mutant(
        "6.9",
        "relative to the computation, not to the total time",
        "return communication / (communication + computation)",
        "return communication / computation",
    ),
    Mutant(
        "6.9",
        "bytes as a 32-bit number",
        "return samples * tokens * width * element_bytes",
        "return int(np.prod([samples, tokens, width, element_bytes], dtype=np.int32))",
        kind="dtype",
    ),
    Mutant(
        "6.9", "a single rank sends too", "* 2 * (ranks - 1) / ranks", "* 2 * max(ranks - 1, 1) / ranks", kind="edge"
    ),
    Mutant(
        "6.9",
        "remembers the first model",
        "return samples * tokens * width * element_bytes",
        'return vars(all_reduce_bytes).setdefault("found", samples * tokens * width * element_bytes)',
        kind="second call",
    ),
]
