"""Mutants of chapter 1."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 1.1 backward
    Mutant("1.1", "a contribution replaces the earlier ones", "parent.grad + contribution", "contribution"),
    Mutant("1.1", "the gradient of the loss stays 0", "loss.grad = 1.0", "pass"),
    Mutant(
        "1.1",
        "a node runs after its first contribution",
        """
            awaited[parent] -= 1
            if awaited[parent] == 0:
                complete.append(parent)
        """,
        """
            if awaited[parent] > 0:
                awaited[parent] = 0
                complete.append(parent)
        """,
    ),
    Mutant(
        "1.1",
        "breadth first, as if all paths had one length",
        WHOLE,
        """
        loss.grad = 1.0
        found, seen = [loss], {loss}
        for node in found:
            for parent, contribution in zip(node.parents, node.rule(node.grad) if node.parents else ()):
                parent.grad = parent.grad + contribution
                if parent not in seen:
                    seen.add(parent)
                    found.append(parent)
        """,
    ),
    Mutant(
        "1.1",
        "walks every path",
        WHOLE,
        """
        loss.grad = 1.0
        waiting = [(loss, 1.0)]
        while waiting:
            node, gradient = waiting.pop()
            for parent, contribution in zip(node.parents, node.rule(gradient) if node.parents else ()):
                parent.grad = parent.grad + contribution
                waiting.append((parent, contribution))
        """,
    ),
    Mutant(
        "1.1",
        "recursion",
        WHOLE,
        """
        order, seen = [], set()

        def visit(node):
            if node not in seen:
                seen.add(node)
                for parent in node.parents:
                    visit(parent)
                order.append(node)

        visit(loss)
        loss.grad = 1.0
        for node in reversed(order):
            for parent, contribution in zip(node.parents, node.rule(node.grad) if node.parents else ()):
                parent.grad = parent.grad + contribution
        """,
    ),
    Mutant(
        "1.1",
        "finds the order by walking every path",
        WHOLE,
        """
        depth, waiting = {}, [(loss, 0)]
        while waiting:
            node, level = waiting.pop()
            depth[node] = max(level, depth.get(node, 0))
            waiting += [(parent, level + 1) for parent in node.parents]
        loss.grad = 1.0
        for node in sorted(depth, key=depth.get):
            for parent, contribution in zip(node.parents, node.rule(node.grad) if node.parents else ()):
                parent.grad = parent.grad + contribution
        """,
    ),
    Mutant(
        "1.1",
        "adds into an array that a rule returned",
        """
            parent.grad = parent.grad + contribution
            awaited[parent] -= 1
        """,
        """
            if isinstance(parent.grad, np.ndarray):
                parent.grad += contribution
            else:
                parent.grad = contribution if isinstance(contribution, np.ndarray) else parent.grad + contribution
            awaited[parent] -= 1
        """,
    ),
    Mutant(
        "1.1",
        "one list of nodes for all calls",
        "unvisited = [loss]",
        'unvisited = vars(backward).setdefault("unvisited", [loss])',
        kind="second call",
    ),
    Mutant(
        "1.1",
        "a loss without parents keeps its gradient",
        "loss.grad = 1.0",
        "loss.grad = 1.0 if loss.parents else loss.grad",
        kind="edge",
    ),
    # 1.2 unbroadcast
    Mutant("1.2", "no sum over stretched axes", "axes = (*range(added), *stretched)", "axes = (*range(added),)"),
    Mutant("1.2", "no sum over added axes", "axes = (*range(added), *stretched)", "axes = (*stretched,)"),
    Mutant("1.2", "shapes are aligned at their first axes", "[added + axis for axis", "[axis for axis"),
    Mutant(
        "1.2",
        "stretched axes are dropped",
        "gradient.sum(axis=axes, dtype=np.float64).reshape(shape)",
        "gradient.sum(axis=axes, dtype=np.float64)",
    ),
    Mutant("1.2", "mean instead of sum", "gradient.sum(", "gradient.mean("),
    Mutant("1.2", "sums in float32", "gradient.sum(axis=axes, dtype=np.float64)", "gradient.sum(axis=axes)"),
    Mutant(
        "1.2",
        "the first repetition instead of the sum",
        WHOLE,
        """
        while gradient.ndim > len(shape):
            gradient = gradient[0]
        return gradient[tuple(slice(size) for size in shape)]
        """,
    ),
    Mutant(
        "1.2",
        "keeps the result for each shape",
        "return gradient.sum(axis=axes, dtype=np.float64).reshape(shape)",
        "return vars(unbroadcast).setdefault((gradient.shape, shape), "
        "gradient.sum(axis=axes, dtype=np.float64).reshape(shape))",
        kind="second call",
    ),
    Mutant(
        "1.2",
        "adds into one array for each shape",
        "return gradient.sum(axis=axes, dtype=np.float64).reshape(shape)",
        "out = vars(unbroadcast).setdefault(shape, np.zeros(shape)); "
        "out[...] = gradient.sum(axis=axes, dtype=np.float64).reshape(shape); return out",
        kind="second call",
    ),
    # 1.3 matmul_backward
    Mutant(
        "1.3",
        "keeps the reshaped arrays of each shape",
        "a.reshape(-1, k).T @ gradient.reshape(-1, m)",
        "vars(matmul_backward).setdefault(a.shape, a.reshape(-1, k)).T @ gradient.reshape(-1, m)",
        kind="lent",
    ),
    Mutant(
        "1.3",
        "returns one buffer for each shape",
        "grad_a = gradient @ b.T",
        "grad_a = vars(matmul_backward).setdefault((a.shape, a.dtype), np.empty_like(a)); "
        "np.matmul(gradient, b.T, out=grad_a)",
        kind="second call",
    ),
    Mutant("1.3", "b is not transposed", "gradient @ b.T", "gradient @ b"),
    Mutant(
        "1.3",
        "the gradient of b is transposed",
        "a.reshape(-1, k).T @ gradient.reshape(-1, m)",
        "gradient.reshape(-1, m).T @ a.reshape(-1, k)",
    ),
    Mutant(
        "1.3",
        "no sum over the batch",
        "a.reshape(-1, k).T @ gradient.reshape(-1, m)",
        "a.swapaxes(-1, -2) @ gradient",
    ),
    Mutant(
        "1.3",
        "mean over the batch",
        "a.reshape(-1, k).T @ gradient.reshape(-1, m)",
        "(a.swapaxes(-1, -2) @ gradient).reshape(-1, k, m).mean(axis=0)",
    ),
    Mutant(
        "1.3",
        "one product per entry of the batch, then their sum",
        "a.reshape(-1, k).T @ gradient.reshape(-1, m)",
        "(a.swapaxes(-1, -2) @ gradient).reshape(-1, k, m).sum(axis=0)",
    ),
    Mutant(
        "1.3",
        "at most one leading axis",
        "a.reshape(-1, k).T @ gradient.reshape(-1, m)",
        "a.T @ gradient if a.ndim == 2 else (a.swapaxes(-1, -2) @ gradient).sum(axis=0)",
    ),
    Mutant("1.3", "always float64", "return grad_a, grad_b", "return grad_a * np.float64(1), grad_b"),
    # 1.4 layer_norm_backward
    Mutant(
        "1.4",
        "keeps the mean of each shape",
        "centred = x - x.mean(axis=-1, keepdims=True)",
        "centred = x - vars(layer_norm_backward).setdefault(x.shape, x.mean(axis=-1, keepdims=True))",
        kind="second call",
    ),
    Mutant(
        "1.4", "always float64", "return grad_x, grad_gain", "return grad_x * np.float64(1), grad_gain", kind="dtype"
    ),
    Mutant(
        "1.4",
        "the mean is treated as a constant",
        "grad_x = grad_normal - grad_normal.mean(axis=-1, keepdims=True)",
        "grad_x = grad_normal.copy()",
    ),
    Mutant(
        "1.4",
        "the variance is treated as a constant",
        "grad_x -= normal * (grad_normal * normal).mean(axis=-1, keepdims=True)",
        "pass",
    ),
    Mutant("1.4", "the gain is not applied", "grad_normal = gradient * gain", "grad_normal = gradient"),
    Mutant("1.4", "eps is missing", "keepdims=True) + eps)", "keepdims=True))"),
    Mutant(
        "1.4",
        "eps is added to the root",
        "np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + eps)",
        "(np.sqrt((centred * centred).mean(axis=-1, keepdims=True)) + eps)",
    ),
    Mutant(
        "1.4", "the gain's gradient from the unnormalised x", "(gradient * normal).reshape", "(gradient * x).reshape"
    ),
    Mutant(
        "1.4",
        "the gain's gradient is summed over the first axis only",
        "(gradient * normal).reshape(-1, width).sum(axis=0)",
        "(gradient * normal).sum(axis=0)",
    ),
    Mutant(
        "1.4",
        "the bias's gradient is the mean",
        "gradient.reshape(-1, width).sum(axis=0)",
        "gradient.reshape(-1, width).mean(axis=0)",
    ),
    Mutant(
        "1.4",
        "variance as mean of squares minus square of mean",
        "(centred * centred).mean(axis=-1, keepdims=True)",
        "(x * x).mean(axis=-1, keepdims=True) - x.mean(axis=-1, keepdims=True) ** 2",
    ),
    # 1.5 cross_entropy
    Mutant("1.5", "exponentials overflow", "logits - logits.max(axis=-1, keepdims=True)", "logits - 0"),
    Mutant(
        "1.5",
        "the maximum over all tokens",
        "logits - logits.max(axis=-1, keepdims=True)",
        "logits - logits.max()",
    ),
    Mutant(
        "1.5",
        "logarithm of a probability that may be 0",
        "np.mean(np.log(totals[:, 0]) - shifted[tokens, targets])",
        "-np.mean(np.log((exps / totals)[tokens, targets]))",
    ),
    Mutant(
        "1.5",
        "an epsilon inside the logarithm",
        "np.mean(np.log(totals[:, 0]) - shifted[tokens, targets])",
        "-np.mean(np.log((exps / totals)[tokens, targets] + 1e-12))",
    ),
    Mutant("1.5", "the gradient of the sum, not of the mean", "grad_logits /= len(logits)", "pass"),
    Mutant("1.5", "sum instead of mean", "np.mean(np.log", "np.sum(np.log"),
    Mutant("1.5", "divided by the vocabulary", "grad_logits /= len(logits)", "grad_logits /= logits.shape[1]"),
    Mutant("1.5", "wrong sign at the target", "grad_logits[tokens, targets] -= 1", "grad_logits[tokens, targets] += 1"),
    Mutant(
        "1.5",
        "the target's column in every row",
        "grad_logits[tokens, targets] -= 1",
        "grad_logits[:, targets] -= 1",
    ),
    Mutant(
        "1.5",
        "changes the caller's logits",
        "shifted = logits - logits.max(axis=-1, keepdims=True)",
        "shifted = logits; shifted -= logits.max(axis=-1, keepdims=True)",
    ),
    Mutant(
        "1.5",
        "one-hot rows of a vocab x vocab matrix",
        "grad_logits[tokens, targets] -= 1",
        "grad_logits -= np.eye(logits.shape[1], dtype=logits.dtype)[targets]",
    ),
    Mutant(
        "1.5",
        "keeps each token's largest logit for each shape",
        "logits - logits.max(axis=-1, keepdims=True)",
        "logits - vars(cross_entropy).setdefault(logits.shape, logits.max(axis=-1, keepdims=True))",
        kind="second call",
    ),
    Mutant(
        "1.5",
        "keeps the targets of each number of tokens",
        "grad_logits[tokens, targets] -= 1",
        "grad_logits[tokens, vars(cross_entropy).setdefault(len(targets), targets)] -= 1",
        kind="lent",
    ),
    Mutant(
        "1.5",
        "the gradient in float64",
        "grad_logits = exps / totals",
        "grad_logits = exps / totals * np.ones(1)",
        kind="dtype",
    ),
    # 1.6 tied_gradients
    Mutant(
        "1.6",
        "a token that occurs twice counts once",
        'np.add.at(gradients["embedding"], tokens, grad_x)',
        'gradients["embedding"][tokens] += grad_x',
    ),
    Mutant(
        "1.6",
        "the output layer's gradient is lost",
        'np.add.at(gradients["embedding"], tokens, grad_x)',
        'gradients["embedding"] = np.zeros_like(embedding); np.add.at(gradients["embedding"], tokens, grad_x)',
    ),
    Mutant(
        "1.6",
        "the lookup's gradient is lost",
        'np.add.at(gradients["embedding"], tokens, grad_x)',
        "pass",
    ),
    Mutant(
        "1.6",
        "keeps the tokens of each number of tokens",
        'np.add.at(gradients["embedding"], tokens, grad_x)',
        'np.add.at(gradients["embedding"], vars(tied_gradients).setdefault(len(tokens), tokens), grad_x)',
        kind="lent",
    ),
    Mutant(
        "1.6",
        "adds to the gradient of the first call",
        'np.add.at(gradients["embedding"], tokens, grad_x)',
        'gradients["embedding"] += vars(tied_gradients).setdefault(embedding.shape, np.zeros(embedding.shape)); '
        'np.add.at(gradients["embedding"], tokens, grad_x); '
        'vars(tied_gradients)[embedding.shape] = gradients["embedding"]',
        kind="second call",
    ),
    # 1.7 adamw_update
    Mutant(
        "1.7",
        "Adam with L2: the decay goes through the running means",
        "beta1, beta2 = betas",
        "beta1, beta2 = betas; grad = grad + weight_decay * data; weight_decay = 0.0",
    ),
    Mutant(
        "1.7",
        "the decay is not scaled by the learning rate",
        "data *= 1 - lr * weight_decay",
        "data *= 1 - weight_decay",
    ),
    Mutant("1.7", "no weight decay", "data *= 1 - lr * weight_decay", "pass"),
    Mutant("1.7", "steps are counted from 0", "beta1, beta2 = betas", "beta1, beta2 = betas; step += 1"),
    Mutant("1.7", "no bias correction of exp_avg_sq", " / sqrt(1 - beta2**step)", ""),
    Mutant("1.7", "no bias correction of exp_avg", "(lr / (1 - beta1**step))", "lr"),
    Mutant(
        "1.7",
        "eps inside the root",
        "np.sqrt(exp_avg_sq) / sqrt(1 - beta2**step) + eps",
        "np.sqrt(exp_avg_sq / (1 - beta2**step) + eps)",
    ),
    Mutant(
        "1.7",
        "eps before the bias correction",
        "np.sqrt(exp_avg_sq) / sqrt(1 - beta2**step) + eps",
        "(np.sqrt(exp_avg_sq) + eps) / sqrt(1 - beta2**step)",
    ),
    Mutant(
        "1.7", "a new array instead of an update in place", "data -= (exp_avg / root)", "data = data - (exp_avg / root)"
    ),
    Mutant(
        "1.7",
        "the decay after the step",
        """
    data *= 1 - lr * weight_decay
    data -= (exp_avg / root) * (lr / (1 - beta1**step))
    """,
        """
    data -= (exp_avg / root) * (lr / (1 - beta1**step))
    data *= 1 - lr * weight_decay
    """,
    ),
    Mutant("1.7", "betas swapped", "beta1, beta2 = betas", "beta2, beta1 = betas"),
    Mutant(
        "1.7",
        "squares the gradient in place",
        "(1 - beta2) * (grad * grad)",
        "(1 - beta2) * np.multiply(grad, grad, out=grad)",
    ),
    Mutant(
        "1.7",
        "counts its own calls instead of steps",
        "beta1, beta2 = betas",
        'beta1, beta2 = betas; step = vars(adamw_update)["calls"] = vars(adamw_update).get("calls", 0) + 1',
        kind="second call",
    ),
    Mutant(
        "1.7",
        "the betas of the first call",
        "beta1, beta2 = betas",
        'beta1, beta2 = vars(adamw_update).setdefault("betas", betas)',
        kind="second call",
    ),
    Mutant(
        "1.7",
        "keeps the square of the gradient for each shape",
        "(1 - beta2) * (grad * grad)",
        "(1 - beta2) * vars(adamw_update).setdefault(grad.shape, grad) * grad",
        kind="lent",
    ),
]
