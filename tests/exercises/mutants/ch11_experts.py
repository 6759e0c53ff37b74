"""Mutants of chapter 11."""

from minidist.course.authoring.mutants import Mutant

MUTANTS = [
    # 11.1 sizes of a mixture
    Mutant(
        "11.1",
        "no router",
        "return width * experts + 2 * width * (experts * hidden",
        "return 2 * width * (experts * hidden",
    ),
    Mutant(
        "11.1", "one matrix an expert", "2 * width * (experts * hidden + shared)", "width * (experts * hidden + shared)"
    ),
    Mutant(
        "11.1",
        "no shared expert among all parameters",
        "(experts * hidden + shared)",
        "(experts * hidden)",
        kind="edge",
    ),
    Mutant(
        "11.1",
        "a shared expert for each expert",
        "(experts * hidden + shared)",
        "experts * (hidden + shared)",
        kind="edge",
    ),
    Mutant(
        "11.1",
        "a token uses all experts",
        "2 * width * (k * hidden + shared)",
        "2 * width * (experts * hidden + shared)",
    ),
    Mutant(
        "11.1",
        "a token uses the router's columns of its own experts alone",
        "return width * experts + 2 * width * (k * hidden + shared)",
        "return width * k + 2 * width * (k * hidden + shared)",
    ),
    Mutant("11.1", "a multiplication and an addition are one", "return 2 * tokens * active", "return tokens * active"),
    Mutant(
        "11.1",
        "the router is free",
        "return 2 * tokens * active_parameters(width, experts, k, hidden, shared)",
        "return 2 * tokens * active_parameters(width, 0, k, hidden, shared)",
    ),
    Mutant(
        "11.1",
        "all parameters compute",
        "return 2 * tokens * active_parameters(width, experts, k, hidden, shared)",
        "return 2 * tokens * mixture_parameters(width, experts, hidden, shared)",
    ),
    Mutant(
        "11.1",
        "times k, whatever is shared",
        "return -(-(times * (k * hidden + shared) - shared) // hidden)",
        "return times * k",
        kind="edge",
    ),
    Mutant(
        "11.1",
        "rounded down",
        "-(-(times * (k * hidden + shared) - shared) // hidden)",
        "(times * (k * hidden + shared) - shared) // hidden",
    ),
    Mutant(
        "11.1",
        "the shared expert counts as one of the experts",
        "(k * hidden + shared) - shared)",
        "(k * hidden + shared))",
    ),
    # 11.2 routing
    Mutant("11.2", "the lowest scores", "np.argsort(-scores, axis=1", "np.argsort(scores, axis=1"),
    Mutant("11.2", "the lowest of the k first", "[:, :k]", "[:, :k][:, ::-1]"),
    Mutant(
        "11.2",
        "ties to the higher index",
        'np.argsort(-scores, axis=1, kind="stable")[:, :k]',
        'np.argsort(scores, axis=1, kind="stable")[:, ::-1][:, :k]',
        kind="edge",
    ),
    Mutant("11.2", "a sort that is not stable", 'axis=1, kind="stable")', "axis=1)", kind="edge"),
    Mutant(
        "11.2",
        "experts of each column",
        'np.argsort(-scores, axis=1, kind="stable")[:, :k]',
        'np.argsort(-scores, axis=0, kind="stable")[:, :k]',
    ),
    Mutant(
        "11.2",
        "sorted by index",
        'return np.argsort(-scores, axis=1, kind="stable")[:, :k]',
        'return np.sort(np.argsort(-scores, axis=1, kind="stable")[:, :k], axis=1)',
    ),
    Mutant(
        "11.2",
        "-inf counts as large",
        "np.argsort(-scores, axis=1",
        "np.argsort(-np.abs(scores), axis=1",
        kind="edge",
    ),
    Mutant("11.2", "always normalized", "if normalize:", "if True:"),
    Mutant("11.2", "never normalized", "if normalize:", "if False:"),
    Mutant("11.2", "divided by the sum of all scores", "(weights.sum(axis=1", "(scores.sum(axis=1"),
    Mutant("11.2", "one sum for all tokens", "weights.sum(axis=1, keepdims=True)", "weights.sum()"),
    Mutant(
        "11.2",
        "softmax of the weights",
        "weights = weights / (weights.sum(axis=1, keepdims=True) + 1e-20)",
        "weights = np.exp(weights) / np.exp(weights).sum(axis=1, keepdims=True)",
    ),
    Mutant("11.2", "NaN where all scores are 0", " + 1e-20)", ")", kind="edge"),
    Mutant("11.2", "so much is added to the sum that it shows", "1e-20", "1e-3", kind="edge"),
    Mutant(
        "11.2",
        "weights in float64",
        "weights = np.take_along_axis(scores, chosen, axis=1)",
        "weights = np.take_along_axis(scores.astype(np.float64), chosen, axis=1)",
        kind="dtype",
    ),
    Mutant(
        "11.2",
        "weights in float32",
        "weights = np.take_along_axis(scores, chosen, axis=1)",
        "weights = np.take_along_axis(scores.astype(np.float32), chosen, axis=1)",
        kind="dtype",
    ),
    Mutant(
        "11.2",
        "weights with the bias",
        "return chosen, gate_weights(scores, chosen",
        "return chosen, gate_weights(scores + bias, chosen",
    ),
    Mutant(
        "11.2", "no bias in the choice", "chosen = top_k_experts(scores + bias, k)", "chosen = top_k_experts(scores, k)"
    ),
    Mutant("11.2", "the bias the wrong way", "top_k_experts(scores + bias, k)", "top_k_experts(scores - bias, k)"),
    Mutant("11.2", "a top-1 weight that is always 1", "normalize=k > 1)", "normalize=True)"),
    Mutant("11.2", "weights that add up to less than 1", "normalize=k > 1)", "normalize=False)"),
    Mutant("11.2", "normalized from three experts on", "normalize=k > 1)", "normalize=k > 2)", kind="edge"),
    Mutant(
        "11.2",
        "adds the bias to what it was lent",
        "chosen = top_k_experts(scores + bias, k)",
        "plain = scores.copy(); scores += bias; chosen = top_k_experts(scores, k); scores = plain",
        kind="lent",
    ),
    # 11.3 the balance loss
    Mutant("11.3", "without the number of experts", "float(len(counts) * np.sum(", "float(np.sum("),
    Mutant("11.3", "counts in place of shares", "shares = counts / counts.sum()", "shares = counts / 1"),
    Mutant(
        "11.3",
        "shares of tokens in place of choices",
        "shares = counts / counts.sum()",
        "shares = counts / len(scores)",
    ),
    Mutant(
        "11.3", "the sum of the scores", "scores.mean(axis=0, dtype=np.float64)", "scores.sum(axis=0, dtype=np.float64)"
    ),
    Mutant("11.3", "the largest score of each expert", "scores.mean(axis=0, dtype=np.float64)", "scores.max(axis=0)"),
    Mutant(
        "11.3",
        "the squares of the shares",
        "np.sum(shares * scores.mean(axis=0, dtype=np.float64))",
        "np.sum(shares**2)",
    ),
    Mutant(
        "11.3",
        "NaN where nothing was chosen",
        "if not len(scores) or not counts.sum():",
        "if not len(scores):",
        kind="edge",
    ),
    Mutant(
        "11.3", "NaN without tokens", "if not len(scores) or not counts.sum():", "if not counts.sum():", kind="edge"
    ),
    Mutant(
        "11.3",
        "counts in float16",
        "shares = counts / counts.sum()",
        "shares = counts.astype(np.float16) / counts.astype(np.float16).sum()",
        kind="edge",
    ),
    Mutant(
        "11.3",
        "the gradient of the sum over the tokens",
        "coefficient * experts / max(1, count) * shares",
        "coefficient * experts * shares",
    ),
    Mutant(
        "11.3",
        "the gradient without the number of experts",
        "coefficient * experts / max(1, count) * shares",
        "coefficient / max(1, count) * shares",
    ),
    Mutant(
        "11.3",
        "the gradient without its coefficient",
        "coefficient * experts / max(1, count)",
        "experts / max(1, count)",
    ),
    Mutant("11.3", "the gradient the wrong way", "slope = (coefficient * experts", "slope = (-coefficient * experts"),
    Mutant("11.3", "divides by the experts", "/ max(1, count) * shares", "/ max(1, experts) * shares"),
    Mutant(
        "11.3",
        "the gradient of even shares",
        "/ max(1, count) * shares)",
        "/ max(1, count) * np.full(experts, 1 / experts))",
    ),
    Mutant("11.3", "all scores as if they added up to 1", "if normalized:", "if True:"),
    Mutant("11.3", "all scores divided by their sum", "if normalized:", "if False:"),
    Mutant(
        "11.3",
        "the sum of a token's scores as a constant",
        "return (slope - (scores / total * slope).sum(axis=1, keepdims=True)) / total",
        "return slope / total",
    ),
    Mutant("11.3", "the scores not divided in backward", "(scores / total * slope).sum", "(scores * slope).sum"),
    Mutant("11.3", "the division forgotten at the end", "keepdims=True)) / total", "keepdims=True)) / 1"),
    Mutant(
        "11.3",
        "one sum for all tokens",
        "total = scores.sum(axis=1, keepdims=True) + 1e-20",
        "total = scores.sum() + 1e-20",
    ),
    Mutant(
        "11.3", "one row for all tokens", "return np.repeat(slope[None], count, axis=0)", "return slope", kind="edge"
    ),
    Mutant(
        "11.3",
        "a gradient in float64",
        ".astype(scores.dtype)  # (E,) of the loss",
        ".astype(np.float64)  # (E,) of the loss",
        kind="dtype",
    ),
    Mutant("11.3", "divides by zero tokens", "max(1, count)", "count", kind="edge"),
    Mutant(
        "11.3",
        "keeps the shares of the first call",
        "count, experts = scores.shape",
        "count, experts = scores.shape; shares = vars(balance_loss_gradient).setdefault(experts, shares.copy())",
        kind="second call",
    ),
    # 11.4 moved_bias
    Mutant("11.4", "up where there is too much", "return bias - np.float32", "return bias + np.float32"),
    Mutant(
        "11.4",
        "the mean over the layers",
        "excess = counts.shape[1] * counts - counts.sum(axis=1, keepdims=True)",
        "excess = counts.shape[0] * counts - counts.sum(axis=0, keepdims=True)",
    ),
    Mutant(
        "11.4",
        "the mean of all layers together",
        "excess = counts.shape[1] * counts - counts.sum(axis=1, keepdims=True)",
        "excess = counts.size * counts - counts.sum()",
    ),
    Mutant("11.4", "the sum in place of the mean", "counts.shape[1] * counts", "counts"),
    Mutant(
        "11.4",
        "the mean rounded down",
        "counts.shape[1] * counts - counts.sum(axis=1, keepdims=True)",
        "counts - counts.sum(axis=1, keepdims=True) // counts.shape[1]",
        kind="edge",
    ),
    Mutant(
        "11.4",
        "a step for a count at the mean",
        "np.sign(excess).astype(np.float32)",
        "np.where(excess >= 0, 1, -1).astype(np.float32)",
        kind="edge",
    ),
    Mutant("11.4", "proportional to the excess", "np.sign(excess)", "excess"),
    Mutant(
        "11.4",
        "counts in float16",
        "excess = counts.shape[1] * counts -",
        "counts = counts.astype(np.float16); excess = counts.shape[1] * counts -",
        kind="edge",
    ),
    Mutant(
        "11.4",
        "counts in bfloat16",
        "excess = counts.shape[1] * counts -",
        "counts = ((counts.astype(np.float32).view(np.uint32) + 0x8000) & 0xFFFF0000).view(np.float32); "
        "excess = counts.shape[1] * counts -",
        kind="edge",
    ),
    Mutant(
        "11.4",
        "counts in float32",
        "excess = counts.shape[1] * counts -",
        "counts = counts.astype(np.float32); excess = counts.shape[1] * counts -",
        kind="edge",
    ),
    Mutant(
        "11.4",
        "counts in 32 bits",
        "excess = counts.shape[1] * counts -",
        "counts = counts.astype(np.int32); excess = counts.shape[1] * counts -",
        kind="edge",
    ),
    Mutant(
        "11.4",
        "a bias in float64",
        "return bias - np.float32(rate) * np.sign(excess).astype(np.float32)",
        "return bias - rate * np.sign(excess)",
        kind="dtype",
    ),
    Mutant(
        "11.4",
        "adds into what it was lent",
        "return bias - np.float32(rate)",
        "bias -= np.float32(rate) * np.sign(excess).astype(np.float32); return bias.copy() + 0 * np.float32(rate)",
        kind="lent",
    ),
    Mutant("11.4", "starts from zero", "return bias - np.float32", "return 0 * bias - np.float32"),
    Mutant(
        "11.4",
        "goes on from the bias of its last call",
        "return bias - np.float32",
        "bias = vars(moved_bias).setdefault(bias.shape, bias.copy()); return bias - np.float32",
        kind="second call",
    ),
    # 11.5 sort_by_expert
    Mutant("11.5", "a sort that is not stable", 'np.argsort(flat, kind="stable")', "np.argsort(flat)", kind="edge"),
    Mutant(
        "11.5",
        "the later tokens first",
        'order = np.argsort(flat, kind="stable")',
        'order = np.argsort(flat[::-1], kind="stable"); order = flat.size - 1 - order',
    ),
    Mutant("11.5", "the first choices of all tokens first", "flat = chosen.reshape(-1)", "flat = chosen.T.reshape(-1)"),
    Mutant("11.5", "tokens in place of choices", "return order, counts\n", "return order // chosen.shape[1], counts\n"),
    Mutant(
        "11.5",
        "no place for experts behind the last one that is chosen",
        "np.bincount(flat, minlength=experts)",
        "np.bincount(flat)",
        kind="edge",
    ),
    Mutant(
        "11.5",
        "counts only those who came",
        "np.bincount(flat, minlength=experts)",
        "np.unique(flat, return_counts=True)[1]",
        kind="edge",
    ),
    Mutant(
        "11.5", "drops the earlier tokens", "order[place < capacity]", "order[place >= counts[flat[order]] - capacity]"
    ),
    Mutant(
        "11.5",
        "takes one too many",
        "order[place < capacity], np.minimum(counts, capacity)",
        "order[place <= capacity], np.minimum(counts, capacity + 1)",
        kind="edge",
    ),
    Mutant("11.5", "counts what is dropped", "np.minimum(counts, capacity)", "counts"),
    Mutant("11.5", "keeps what is dropped", "order[place < capacity]", "order"),
    Mutant("11.5", "a capacity of 0 is none", "if capacity is None:", "if not capacity:", kind="edge"),
    Mutant(
        "11.5",
        "the capacity of all experts together",
        "place = np.arange(len(order)) - first[flat[order]]",
        "place = np.arange(len(order)) // experts",
    ),
    Mutant(
        "11.5",
        "places counted from the wrong end of each expert",
        "first = np.cumsum(counts) - counts",
        "first = np.cumsum(counts)",
    ),
    Mutant(
        "11.5",
        "keeps the order of the first call",
        'order = np.argsort(flat, kind="stable")',
        'order = vars(sort_by_expert).setdefault(flat.size, np.argsort(flat, kind="stable")).copy()',
        kind="second call",
    ),
    Mutant(
        "11.5",
        "sorts what it was lent",
        'order = np.argsort(flat, kind="stable")',
        'order = np.argsort(flat, kind="stable"); keep = flat.copy(); flat.sort(); flat = keep',
        kind="lent",
    ),
    # 11.6 combine
    Mutant(
        "11.6",
        "without the weights",
        "total += weights[:, j, None] * rows[places[:, j]]",
        "total += rows[places[:, j]]",
    ),
    Mutant(
        "11.6",
        "the mean",
        "total += weights[:, j, None] * rows[places[:, j]]",
        "total += weights[:, j, None] * rows[places[:, j]] / weights.shape[1]",
    ),
    Mutant("11.6", "the first choice alone", "for j in range(weights.shape[1]):", "for j in range(1):", kind="edge"),
    Mutant(
        "11.6",
        "the last choice first",
        "for j in range(weights.shape[1]):",
        "for j in reversed(range(weights.shape[1])):",
        kind="edge",
    ),
    Mutant(
        "11.6",
        "dropped choices get the last row",
        "rows = np.concatenate([rows, np.zeros((1, rows.shape[1]), rows.dtype)])",
        "rows = rows if len(rows) else np.zeros((1, rows.shape[1]), rows.dtype)",
        kind="edge",
    ),
    Mutant(
        "11.6",
        "in the order in which rows arrive",
        """
        for j in range(weights.shape[1]):
            total += weights[:, j, None] * rows[places[:, j]]
        """,
        """
        flat = places.reshape(-1)
        by_row = np.argsort(flat, kind="stable")
        np.add.at(total, by_row // weights.shape[1], weights.reshape(-1)[by_row, None] * rows[flat[by_row]])
        """,
        kind="edge",
    ),
    Mutant(
        "11.6",
        "a sum over the choices in float64",
        """
        for j in range(weights.shape[1]):
            total += weights[:, j, None] * rows[places[:, j]]
        """,
        """
        total += (weights[:, :, None].astype(np.float64) * rows[places]).sum(axis=1).astype(rows.dtype)
        """,
        kind="dtype",
    ),
    Mutant(
        "11.6",
        "a result in float64",
        "np.zeros((len(weights), rows.shape[1]), rows.dtype)",
        "np.zeros((len(weights), rows.shape[1]))",
        kind="dtype",
    ),
    Mutant(
        "11.6",
        "as many tokens as rows",
        "total = np.zeros((len(weights), rows.shape[1]), rows.dtype)",
        "total = np.zeros((max(len(weights), len(rows) - 1), rows.shape[1]), rows.dtype)[: len(rows) - 1]",
    ),
    Mutant(
        "11.6",
        "the gradient of the rows without weights",
        "return per_row * weights.reshape(-1)[order][:, None],",
        "return per_row * 1,",
    ),
    Mutant(
        "11.6",
        "weights in the order of the tokens",
        "weights.reshape(-1)[order][:, None]",
        "weights.reshape(-1)[: len(order)][:, None]",
    ),
    Mutant(
        "11.6",
        "gradients of the weights in the order of the rows",
        "grad_weights[order] =",
        "grad_weights[: len(order)] =",
    ),
    Mutant(
        "11.6",
        "the gradient of the weights twice weighted",
        'np.einsum("rc,rc->r", per_row, rows)',
        'np.einsum("rc,rc->r", per_row, rows) * weights.reshape(-1)[order]',
    ),
    Mutant(
        "11.6",
        "the mean over the width",
        'np.einsum("rc,rc->r", per_row, rows)',
        'np.einsum("rc,rc->r", per_row, rows) / rows.shape[1]',
    ),
    Mutant(
        "11.6",
        "the gradient of the weights without what experts say",
        'np.einsum("rc,rc->r", per_row, rows)',
        "per_row.sum(axis=1)",
    ),
    Mutant("11.6", "the gradient of another token", "per_row = gradient[token]", "per_row = gradient[token[::-1]]"),
    Mutant(
        "11.6",
        "what was dropped has a gradient",
        "grad_weights = np.zeros(weights.size, weights.dtype)",
        "grad_weights = np.full(weights.size, gradient.sum() + 1, weights.dtype)",
        kind="edge",
    ),
    Mutant(
        "11.6",
        "gradients of the weights left uninitialized",
        "grad_weights = np.zeros(weights.size, weights.dtype)",
        "grad_weights = np.full(weights.size, np.nan, weights.dtype)",
        kind="edge",
    ),
    Mutant(
        "11.6",
        "gradients of the weights in float64",
        "np.zeros(weights.size, weights.dtype)",
        "np.zeros(weights.size)",
        kind="dtype",
    ),
    Mutant(
        "11.6", "gradients of the weights one after the other", "grad_weights.reshape(weights.shape)", "grad_weights"
    ),
    Mutant(
        "11.6",
        "weighs the gradient that it was lent",
        "per_row = gradient[token]",
        "gradient *= 1 + np.float32(len(gradient) > 1); per_row = gradient[token]",
        kind="lent",
    ),
    Mutant(
        "11.6",
        "weighs the rows that it was lent",
        "rows = np.concatenate([rows,",
        "rows *= 2; rows = np.concatenate([rows / 2,",
        kind="lent",
    ),
    Mutant(
        "11.6",
        "adds to the result of the last call",
        "total = np.zeros((len(weights), rows.shape[1]), rows.dtype)",
        "total = vars(combine_rows).setdefault("
        "(weights.shape, rows.shape), np.zeros((len(weights), rows.shape[1]), rows.dtype))",
        kind="second call",
    ),
    # 11.7 two all-to-alls
    Mutant(
        "11.7",
        "its own counts",
        "return found.reshape(group.size, -1).tolist()",
        "return mine.reshape(group.size, -1).tolist()",
    ),
    Mutant(
        "11.7",
        "counts by expert, then by rank",
        "found.reshape(group.size, -1).tolist()",
        "found.reshape(group.size, -1).T.tolist()",
    ),
    Mutant("11.7", "one list for all ranks", "found.reshape(group.size, -1).tolist()", "found.tolist()"),
    Mutant(
        "11.7",
        "an array in place of lists",
        "return found.reshape(group.size, -1).tolist()",
        "return list(found.reshape(group.size, -1))",
    ),
    Mutant("11.7", "counts of two bits", "np.array(counts, np.int64)", "np.array(counts, np.int64) % 4"),
    Mutant(
        "11.7",
        "a rank without tokens does not take part in the counts: the others hang",
        "mine = np.array(counts, np.int64)",
        "mine = np.array(counts, np.int64)\n"
        "    if not mine.any():\n"
        "        return mine.reshape(group.size, -1).tolist()",
        kind="edge",
    ),
    Mutant(
        "11.7",
        "a rank without rows does not take part",
        "arrived = np.empty((sum(receive), rows.shape[1]), rows.dtype)",
        "arrived = np.empty((sum(receive), rows.shape[1]), rows.dtype)\n    if not len(rows):\n        return arrived",
        kind="edge",
    ),
    Mutant(
        "11.7",
        "splits exchanged",
        "all_to_all_single(arrived, rows, receive, send, group)",
        "all_to_all_single(arrived, rows, send, receive, group)",
    ),
    Mutant(
        "11.7",
        "equal splits",
        "all_to_all_single(arrived, rows, receive, send, group)",
        "n = group.size; "
        "all_to_all_single(arrived[: len(arrived) // n * n], rows[: len(rows) // n * n], None, None, group)",
    ),
    Mutant(
        "11.7",
        "as many rows as it has sent",
        "np.empty((sum(receive), rows.shape[1])",
        "np.empty((sum(send), rows.shape[1])",
    ),
    Mutant("11.7", "receives float64", "rows.shape[1]), rows.dtype)", "rows.shape[1]))", kind="dtype"),
    Mutant(
        "11.7",
        "pads every message to the longest",
        """
        all_to_all_single(arrived, rows, receive, send, group)
        return arrived
        """,
        """
        most = np.array([max(send + receive)])
        all_reduce(most, ReduceOp.MAX, group)
        width, longest = rows.shape[1], int(most[0])
        padded = np.zeros((group.size, longest, width), rows.dtype)
        for rank, part in enumerate(np.split(rows, np.cumsum(send)[:-1])):
            padded[rank, : len(part)] = part
        found = np.empty_like(padded)
        all_to_all_single(found, padded, group=group)
        return np.concatenate([part[:count] for part, count in zip(found, receive, strict=True)])
        """,
    ),
    Mutant(
        "11.7",
        "keeps the splits of the first call",
        "arrived = np.empty((sum(receive), rows.shape[1]), rows.dtype)",
        "key = group.size, len(rows), sum(receive)\n"
        "    send, receive = vars(exchange_rows).setdefault(key, (list(send), list(receive)))\n"
        "    arrived = np.empty((sum(receive), rows.shape[1]), rows.dtype)",
        kind="second call",
    ),
    Mutant(
        "11.7",
        "one rank returns what it was lent",
        "arrived = np.empty((sum(receive), rows.shape[1]), rows.dtype)",
        "if group.size == 1:\n        return rows\n    arrived = np.empty((sum(receive), rows.shape[1]), rows.dtype)",
        kind="lent",
    ),
    Mutant(
        "11.7",
        "the experts of its rank in the first group",
        "return found.reshape(group.size, -1).tolist()",
        'size = vars(exchange_counts).setdefault("size", group.size); return found.reshape(size, -1).tolist()',
        kind="second call",
    ),
    # 11.8 expert_groups
    Mutant(
        "11.8",
        "ranks that are far apart share the experts",
        "split = mesh.reshape(pp, dp // ranks, ranks, cp, tp)",
        "split = mesh.reshape(pp, ranks, dp // ranks, cp, tp).swapaxes(1, 2)",
    ),
    Mutant(
        "11.8",
        "the two lists exchanged",
        "return exchanging.tolist(), same_experts.tolist()",
        "return same_experts.tolist(), exchanging.tolist()",
    ),
    Mutant(
        "11.8",
        "neighbours of the last axis exchange tokens",
        "np.moveaxis(split, 2, -1).reshape(-1, ranks)",
        "split.reshape(-1, ranks)",
        kind="edge",
    ),
    Mutant(
        "11.8",
        "context-parallel ranks have groups of their own",
        "split.transpose(0, 2, 4, 1, 3).reshape(-1, dp // ranks * cp)",
        "split.transpose(0, 2, 4, 3, 1).reshape(-1, dp // ranks)",
        kind="edge",
    ),
    Mutant("11.8", "cp before dp", "split.transpose(0, 2, 4, 1, 3)", "split.transpose(0, 2, 4, 3, 1)", kind="edge"),
    Mutant(
        "11.8",
        "tensor-parallel ranks together",
        "split.transpose(0, 2, 4, 1, 3).reshape(-1, dp // ranks * cp)",
        "split.transpose(0, 2, 1, 3, 4).reshape(-1, dp // ranks * cp * tp)",
        kind="edge",
    ),
    Mutant(
        "11.8",
        "pipeline stages together",
        "split.transpose(0, 2, 4, 1, 3).reshape(-1, dp // ranks * cp)",
        "split.transpose(2, 4, 0, 1, 3).reshape(-1, pp * dp // ranks * cp)",
        kind="edge",
    ),
    Mutant(
        "11.8",
        "all data-parallel ranks have the same experts",
        "split.transpose(0, 2, 4, 1, 3).reshape(-1, dp // ranks * cp)",
        "split.transpose(0, 4, 1, 2, 3).reshape(-1, dp * cp)",
    ),
    Mutant(
        "11.8",
        "places in place of ranks",
        "split = mesh.reshape(pp,",
        "split = np.arange(mesh.size).reshape(pp,",
        kind="edge",
    ),
    Mutant(
        "11.8",
        "groups in descending order",
        "np.moveaxis(split, 2, -1).reshape(-1, ranks)",
        "np.moveaxis(split, 2, -1).reshape(-1, ranks)[:, ::-1]",
    ),
    Mutant("11.8", "arrays in place of lists", "return exchanging.tolist(),", "return list(exchanging),"),
    Mutant(
        "11.8",
        "keeps the groups of the first mesh of a shape",
        "return exchanging.tolist(), same_experts.tolist()",
        "return vars(expert_groups).setdefault((mesh.shape, ranks), (exchanging.tolist(), same_experts.tolist()))",
        kind="second call",
    ),
    # 11.9 ExpertSync
    Mutant(
        "11.9",
        "experts ep times too large: divided by their replicas",
        "experts /= self.world.size",
        "experts /= self.same_experts.size",
    ),
    Mutant(
        "11.9",
        "experts ep times too small: divided by both",
        "experts /= self.world.size",
        "experts /= self.world.size * self.exchanging.size",
    ),
    Mutant("11.9", "experts not divided", "experts /= self.world.size", "pass"),
    Mutant(
        "11.9",
        "experts divided by the ranks that exchange tokens",
        "experts /= self.world.size",
        "experts /= self.exchanging.size",
        kind="edge",
    ),
    Mutant(
        "11.9",
        "the norm without the experts of other ranks",
        "all_reduce(squares, ReduceOp.SUM, self.exchanging)",
        "pass",
    ),
    Mutant(
        "11.9",
        "experts counted once for each replica",
        "all_reduce(squares, ReduceOp.SUM, self.exchanging)",
        "all_reduce(squares, ReduceOp.SUM, self.world)",
    ),
    Mutant(
        "11.9",
        "the norm of the ranks with the largest experts",
        "all_reduce(squares, ReduceOp.SUM, self.exchanging)",
        "all_reduce(squares, ReduceOp.MAX, self.world)",
    ),
    Mutant(
        "11.9",
        "the mean over the ranks that exchange tokens",
        "all_reduce(squares, ReduceOp.SUM, self.exchanging)",
        "all_reduce(squares, ReduceOp.SUM, self.exchanging); squares /= self.exchanging.size",
    ),
    Mutant(
        "11.9",
        "the norm of the dense parameters alone",
        "all_reduce(squares, ReduceOp.SUM, self.exchanging)",
        "squares[0] = 0",
        kind="edge",
    ),
    # 11.10 the cost of the all-to-all
    Mutant(
        "11.10",
        "one way",
        "return 4 * k * tokens * width * (ranks - 1) / ranks",
        "return 2 * k * tokens * width * (ranks - 1) / ranks",
    ),
    Mutant(
        "11.10",
        "one copy a token",
        "return 4 * k * tokens * width * (ranks - 1) / ranks",
        "return 4 * tokens * width * (ranks - 1) / ranks",
    ),
    Mutant(
        "11.10",
        "nothing stays",
        "return 4 * k * tokens * width * (ranks - 1) / ranks",
        "return 4 * k * tokens * width",
        kind="edge",
    ),
    Mutant("11.10", "forward alone", "return 2 * 2 * tokens * width", "return 2 * tokens * width"),
    Mutant(
        "11.10",
        "an all-reduce sends everything to everyone",
        "2 * 2 * tokens * width * (ranks - 1) / ranks",
        "2 * 2 * tokens * width * (ranks - 1)",
    ),
    Mutant(
        "11.10",
        "other nodes alone count as places",
        "max(ranks - node_size, 0) / ranks",
        "max(ranks - node_size, 0) / max(ranks - 1, 1)",
    ),
    Mutant(
        "11.10",
        "less than nothing crosses in a node that is not full",
        "max(ranks - node_size, 0) / ranks",
        "(ranks - node_size) / ranks",
        kind="edge",
    ),
    Mutant(
        "11.10", "one node fewer crosses", "max(ranks - node_size, 0) / ranks", "max(ranks - 2 * node_size, 0) / ranks"
    ),
    Mutant(
        "11.10",
        "one link after the other",
        "max(inside / fast, crossing / slow)",
        "inside / fast + crossing / slow",
    ),
    Mutant(
        "11.10",
        "everything on the fast link as well",
        "inside = all_to_all_elements(tokens, width, k, ranks) - crossing",
        "inside = all_to_all_elements(tokens, width, k, ranks)",
    ),
    Mutant(
        "11.10",
        "links exchanged",
        "max(inside / fast, crossing / slow)",
        "max(inside / slow, crossing / fast)",
    ),
    Mutant(
        "11.10",
        "no limit",
        "crossing_elements(tokens, width, most, ranks, node_size)",
        "crossing_elements(tokens, width, k, ranks, node_size)",
    ),
    Mutant(
        "11.10",
        "one copy inside each node",
        "copies = all_to_all_elements(tokens, width, k, node_size)",
        "copies = all_to_all_elements(tokens, width, most, node_size)",
    ),
    Mutant(
        "11.10",
        "inside the node without what has come from others",
        "copies = all_to_all_elements(tokens, width, k, node_size)",
        "copies = all_to_all_elements(tokens, width, k, node_size) * node_size / ranks",
    ),
    Mutant("11.10", "just as long is longer", "/ fast / for_each) + 1", "/ fast / for_each - 1e-9) + 1", kind="edge"),
    Mutant("11.10", "one less", "/ fast / for_each) + 1", "/ fast / for_each)"),
    Mutant(
        "11.10",
        "tensor parallelism on the slow links",
        "all_reduce_elements(1, 1, tensor) / fast",
        "all_reduce_elements(1, 1, tensor) / slow",
    ),
    Mutant(
        "11.10",
        "as many tensor-parallel ranks as share the experts",
        "all_reduce_elements(1, 1, tensor)",
        "all_reduce_elements(1, 1, ranks)",
    ),
]
