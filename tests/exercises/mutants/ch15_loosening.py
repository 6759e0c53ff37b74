"""Mutants of chapter 15. Some are bugs that real systems had."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 15.1 shard map
    Mutant("15.1", "in the given order", "sorted(sizes, key=lambda name: -sizes[name])", "sizes"),
    Mutant("15.1", "smallest first", "key=lambda name: -sizes[name]", "key=lambda name: sizes[name]"),
    Mutant("15.1", "by name where sizes are equal", "-sizes[name])", "(-sizes[name], name))", kind="edge"),
    Mutant("15.1", "last first where sizes are equal", "sorted(sizes,", "sorted(list(sizes)[::-1],", kind="edge"),
    Mutant("15.1", "in turn", "held.index(min(held))", "sum(map(len, shards)) % servers"),
    Mutant("15.1", "fewest parameters, not elements", "held[emptiest] += sizes[name]", "held[emptiest] += 1"),
    Mutant(
        "15.1",
        "the last of those that hold as much",
        "held.index(min(held))",
        "servers - 1 - held[::-1].index(min(held))",
        kind="edge",
    ),
    Mutant("15.1", "one list for all", "[[] for _ in range(servers)]", "[[]] * servers"),
    Mutant(
        "15.1", "servers without parameters are left out", "return shards", "return [s for s in shards if s]", "edge"
    ),
    Mutant("15.1", "works in place", "return shards", "getattr(sizes, 'clear')()\n    return shards", kind="lent"),
    # 15.2 SSP
    Mutant("15.2", "one step less", "<= staleness", "< staleness"),
    Mutant("15.2", "one step more", "<= staleness", "<= staleness + 1"),
    Mutant("15.2", "the fastest decides", "clocks[worker] - min(clocks)", "max(clocks) - min(clocks)"),
    Mutant("15.2", "behind the fastest", "clocks[worker] - min(clocks)", "max(clocks) - clocks[worker]"),
    Mutant("15.2", "ahead of the mean", "min(clocks)", "sum(clocks) / len(clocks)"),
    Mutant("15.2", "ahead of the neighbour", "min(clocks)", "clocks[worker - 1]"),
    Mutant("15.2", "no bound but 0", "<= staleness", "<= (staleness if staleness < 1 else float('inf'))"),
    Mutant("15.2", "infinity is no number", "<= staleness", "<= int(min(staleness, 5))", kind="edge"),
    # 15.3 staleness
    Mutant("15.3", "everyone reads the newest", "versions.append(read.get(worker, 0))", "versions.append(update)"),
    Mutant("15.3", "reads before its update is applied", "read[worker] = update + 1", "read[worker] = update"),
    Mutant("15.3", "versions from 1", "read.get(worker, 0)", "read.get(worker, 1)", kind="edge"),
    Mutant("15.3", "its own update counts", "[update - version for", "[update - version + 1 for"),
    Mutant("15.3", "itself among the others", " if other != worker)", ")"),
    Mutant("15.3", "the others' seconds over its own", "seconds[worker] / each for", "each / seconds[worker] for"),
    Mutant("15.3", "the number of others", "seconds[worker] / each for", "1.0 for"),
    Mutant("15.3", "N", "float(len(seconds) - 1)", "float(len(seconds))"),
    Mutant(
        "15.3",
        "every worker counts alike",
        "float(len(seconds) - 1)",
        "sum(workers_staleness(seconds, w) for w in range(len(seconds))) / len(seconds)",
    ),
    Mutant("15.3", "a bound speeds up in the long run", 'staleness == float("inf")', "staleness"),
    Mutant("15.3", "nobody waits", "len(seconds) / max(seconds)", "sum(1 / each for each in seconds)"),
    Mutant("15.3", "the mean worker decides", "len(seconds) / max(seconds)", "len(seconds) ** 2 / sum(seconds)"),
    Mutant("15.3", "steps, not gradients", "len(seconds) / max(seconds)", "1 / max(seconds)"),
    # 15.4 delays
    Mutant("15.4", "no delay", "x[step - delay] if", "x[step] if"),
    Mutant("15.4", "one step less", "x[step - delay] if", "x[min(step, step - delay + 1)] if"),
    Mutant("15.4", "gradients from before the start", "if step >= delay else 0.0", "if step >= delay else x[0]"),
    Mutant("15.4", "from the end of the list", " if step >= delay else 0.0", "", kind="edge"),
    Mutant("15.4", "one step too many", "for step in range(steps):", "for step in range(steps + 1):", kind="edge"),
    Mutant("15.4", "2 / (1 + delay)", "2 * sin(pi / (2 * (2 * delay + 1)))", "2 / (1 + delay)"),
    Mutant("15.4", "1 / delay", "2 * sin(pi / (2 * (2 * delay + 1)))", "2.0 if not delay else 1 / delay"),
    Mutant("15.4", "the sine is its angle", "2 * sin(pi / (2 * (2 * delay + 1)))", "pi / (2 * delay + 1)"),
    Mutant("15.4", "another root", "2 * sin(pi / (2 * (2 * delay + 1)))", "2 * sin(pi / (2 * (delay + 1)))"),
    Mutant(
        "15.4", "half of the largest", "factor**delay / (delay + 1), factor", "largest_stable_lr(delay) / 2, factor"
    ),
    Mutant("15.4", "1 / e(delay + 1)", "factor**delay / (delay + 1), factor", "0.36788 / (delay + 1), factor"),
    Mutant("15.4", "one minus the rate", "/ (delay + 1), factor", "/ (delay + 1), 1 - factor**delay / (delay + 1)"),
    # 15.5 the server
    Mutant(
        "15.5",
        "only the same message twice in a row",
        """
        if step >= self.ended.get(worker, 0):
            self.weights -= self.lr * gradient
            self.version += 1
            self.ended[worker] = step + 1
        """,
        """
        if getattr(self, "latest", None) != (worker, step):
            self.weights -= self.lr * gradient
            self.version += 1
            self.latest = worker, step
        """,
    ),
    Mutant(
        "15.5",
        "the latest of each worker",
        "if step >= self.ended",
        "if step != self.ended.get(worker, 0) - 1 or step > self.ended",
    ),
    Mutant("15.5", "steps of all workers", "self.ended.get(worker, 0)", "max(self.ended.values(), default=0)"),
    Mutant("15.5", "weights that change under the worker", "self.weights.copy()", "self.weights", kind="lent"),
    Mutant("15.5", "a view", "self.weights.copy()", "self.weights[:]", kind="lent"),
    Mutant(
        "15.5",
        "every message is a version",
        "if step >= self.ended.get(worker, 0):",
        "self.version += step < self.ended.get(worker, 0)\n        if step >= self.ended.get(worker, 0):",
    ),
    Mutant(
        "15.5", "what comes again is added in the end", "self.ended[worker] = step + 1", "self.ended[worker] = step"
    ),
    # 15.6 top-k
    Mutant("15.6", "the largest, not the largest by magnitude", "-np.abs(corrected)", "-corrected"),
    Mutant("15.6", "the smallest", "-np.abs(corrected)", "np.abs(corrected)"),
    Mutant(
        "15.6",
        "in the order of size",
        'np.sort(np.argsort(-np.abs(corrected), kind="stable")[:k])',
        'np.argsort(-np.abs(corrected), kind="stable")[:k]',
    ),
    Mutant(
        "15.6",
        "any of those as large",
        'np.argsort(-np.abs(corrected), kind="stable")[:k]',
        "np.argpartition(-np.abs(corrected), min(k, corrected.size) - 1)[:k]",
        kind="edge",
    ),
    Mutant(
        "15.6",
        "the last of those as large",
        'np.argsort(-np.abs(corrected), kind="stable")[:k]',
        'np.argsort(np.abs(corrected), kind="stable")[::-1][:k]',
        kind="edge",
    ),
    Mutant(
        "15.6",
        "all that are as large as the k-th",
        'np.sort(np.argsort(-np.abs(corrected), kind="stable")[:k])',
        "np.flatnonzero(np.abs(corrected) >= np.sort(np.abs(corrected))[-k:].min(initial=np.inf))",
        kind="edge",
    ),
    Mutant("15.6", "int64 indices", ".astype(np.int32)", "", kind="dtype"),
    Mutant(
        "15.6",
        "float64 values",
        "return indices, corrected[indices]",
        "return indices, corrected[indices].astype(np.float64)",
        kind="dtype",
    ),
    Mutant("15.6", "magnitudes", "return indices, corrected[indices]", "return indices, np.abs(corrected)[indices]"),
    Mutant(
        "15.6",
        "works in place",
        "return indices, corrected[indices]",
        "values = corrected[indices]\n    corrected[indices] = 0\n    return indices, values",
        kind="lent",
    ),
    Mutant(
        "15.6",
        "a view where everything is sent",
        "return indices, corrected[indices]",
        "return indices, corrected if k == corrected.size else corrected[indices]",
        kind="lent",
    ),
    # 15.7 error feedback
    Mutant("15.7", "no feedback", "send(corrected)", "send(gradient.copy())"),
    Mutant("15.7", "only this step's is left", "return sent, corrected - sent", "return sent, gradient - sent"),
    Mutant("15.7", "what is left is not added up", "return sent, corrected - sent", "return sent, residual - sent"),
    Mutant("15.7", "the residual is lost", "return sent, corrected - sent", "return sent, np.zeros_like(sent)"),
    Mutant("15.7", "the wrong sign", "return sent, corrected - sent", "return sent, sent - corrected"),
    Mutant("15.7", "added and subtracted", "gradient + residual", "gradient - residual"),
    Mutant("15.7", "half of it decays", "gradient + residual", "gradient + 0.5 * residual"),
    Mutant("15.7", "sent twice", "return sent, corrected - sent", "return sent, corrected - send(corrected)"),
    Mutant(
        "15.7",
        "the residual in the gradient's array",
        "corrected = gradient + residual",
        "gradient += residual\n    corrected = gradient.copy()",
        kind="lent",
    ),
    Mutant(
        "15.7",
        "the residual in its old array",
        "corrected = gradient + residual",
        "residual += gradient\n    corrected = residual.copy()",
        kind="lent",
    ),
    Mutant("15.7", "returns the gradient", "return sent, corrected - sent", "return corrected, corrected - sent"),
    Mutant(
        "15.7",
        "in float32",
        "return sent, corrected - sent",
        "return sent, (corrected - sent).astype(np.float32)",
        kind="dtype",
    ),
    # 15.8 stochastic rounding
    Mutant(
        "15.8",
        "to the nearest",
        "rng.random(values.shape) < multiples - low",
        "0 * rng.random(values.shape) + 0.5 < multiples - low",
    ),
    Mutant("15.8", "down", "low + up", "low + 0 * up"),
    Mutant("15.8", "a coin", "< multiples - low", "< 0.5"),
    Mutant("15.8", "the wrong chance", "< multiples - low", "> multiples - low"),
    Mutant("15.8", "towards zero", "np.floor(multiples)", "np.trunc(multiples)"),
    Mutant("15.8", "one number for all", "rng.random(values.shape)", "rng.random()"),
    Mutant(
        "15.8",
        "a sum that rounds",
        WHOLE,
        "return (np.floor((values / unit).astype(np.float64) + rng.random(values.shape)) * unit).astype(values.dtype)",
        kind="edge",
    ),
    Mutant("15.8", "a unit of 1", "((low + up) * unit)", "(low + up)"),
    Mutant("15.8", "float64", ".astype(values.dtype)", ".astype(np.float64)", kind="dtype"),
    Mutant(
        "15.8",
        "up for multiples too",
        "rng.random(values.shape) < multiples - low",
        "rng.random(values.shape) <= np.maximum(multiples - low, 0.01)",
        kind="edge",
    ),
    Mutant(
        "15.8",
        "works in place",
        "multiples = values / unit",
        "values /= unit\n    multiples = values.copy()",
        kind="lent",
    ),
    Mutant(
        "15.8",
        "a generator of its own",
        "up = rng.random(values.shape)",
        "up = np.random.default_rng().random(values.shape)",
    ),
    # 15.9 one bit
    Mutant("15.9", "above zero", "corrected < 0", "corrected > 0"),
    Mutant("15.9", "zero is negative", "corrected < 0", "corrected <= 0", kind="edge"),
    Mutant("15.9", "the sign bit of zero", "corrected < 0", "np.signbit(corrected)", kind="edge"),
    Mutant("15.9", "the largest magnitude", "np.abs(corrected).mean(dtype=np.float64)", "np.abs(corrected).max()"),
    Mutant(
        "15.9",
        "the root of the mean square",
        "np.abs(corrected).mean(dtype=np.float64)",
        "np.sqrt((corrected**2).mean(dtype=np.float64))",
    ),
    Mutant("15.9", "the sum", "np.abs(corrected).mean(dtype=np.float64)", "np.abs(corrected).sum(dtype=np.float64)"),
    Mutant(
        "15.9",
        "zeros do not count",
        "np.abs(corrected).mean(dtype=np.float64)",
        "np.abs(corrected).sum(dtype=np.float64) / max(1, np.count_nonzero(corrected))",
        kind="edge",
    ),
    Mutant("15.9", "the mean of nothing", " if corrected.size else 0.0", "", kind="edge"),
    Mutant("15.9", "in float32", ".mean(dtype=np.float64)", ".mean(dtype=np.float32)", kind="dtype"),
    Mutant("15.9", "in the array's dtype", ".mean(dtype=np.float64)", ".mean()", kind="dtype"),
    Mutant("15.9", "NumPy's number", "float(scale)", "np.float64(scale)", kind="dtype"),
    # 15.10 PowerSGD
    Mutant("15.10", "each rank's own P", "all_reduce(p)\np = orthonormal(p)", "p = orthonormal(p)"),
    Mutant("15.10", "each rank's own Q", "all_reduce(q)\nreturn p, q", "return p, q"),
    Mutant(
        "15.10",
        "orthonormal before the sum",
        "all_reduce(p)\np = orthonormal(p)",
        "p = orthonormal(p)\nall_reduce(p)",
    ),
    Mutant("15.10", "not orthonormal", "p = orthonormal(p)\n", "\n"),
    Mutant(
        "15.10", "columns of length 1, not orthogonal", "p = orthonormal(p)\n", "p = p / np.linalg.norm(p, axis=0)\n"
    ),
    Mutant("15.10", "Q is orthonormal too", "return p, q\n", "return p, orthonormal(q)\n"),
    Mutant(
        "15.10",
        "the whole matrix is summed",
        "p = matrix @ q",
        "matrix = matrix.copy()\n    all_reduce(matrix)\n    p = matrix @ q",
    ),
    Mutant(
        "15.10",
        "the warm start is refilled",
        "p = matrix @ q",
        "p = matrix @ np.random.default_rng(0).standard_normal(q.shape).astype(q.dtype)",
    ),
    Mutant("15.10", "Q in its old array", "q = matrix.T @ p", "q[:] = matrix.T @ p", kind="lent"),
    Mutant("15.10", "float64", "p = matrix @ q ", "p = matrix.astype(np.float64) @ q ", kind="dtype"),
    Mutant("15.10", "float32", "q = matrix.T @ p", "q = (matrix.T @ p).astype(np.float32)", kind="dtype"),
    # 15.11 local steps
    Mutant("15.11", "no Nesterov", "step = pseudo_gradient + momentum * momentum_buffer", "step = momentum_buffer"),
    Mutant(
        "15.11",
        "the old buffer",
        """
        momentum_buffer *= momentum
        momentum_buffer += pseudo_gradient
        step = pseudo_gradient + momentum * momentum_buffer
        """,
        """
        step = pseudo_gradient + momentum * momentum_buffer
        momentum_buffer *= momentum
        momentum_buffer += pseudo_gradient
        """,
    ),
    Mutant(
        "15.11",
        "the buffer decays in place",
        "step = pseudo_gradient + momentum * momentum_buffer",
        "momentum_buffer *= momentum\n        step = pseudo_gradient + momentum_buffer",
    ),
    Mutant(
        "15.11",
        "the pseudo-gradient becomes the step",
        "step = pseudo_gradient + momentum * momentum_buffer",
        "pseudo_gradient += momentum * momentum_buffer",
        kind="lent",
    ),
    Mutant(
        "15.11", "a buffer of the rate", "momentum_buffer += pseudo_gradient", "momentum_buffer += lr * pseudo_gradient"
    ),
    Mutant(
        "15.11",
        "a share of the gradient",
        "momentum_buffer += pseudo_gradient",
        "momentum_buffer += (1 - momentum) * pseudo_gradient",
    ),
    Mutant("15.11", "uphill", "data -= lr * step", "data += lr * step"),
    Mutant("15.11", "new weights", "data -= lr * step", "data = data - lr * step"),
    Mutant("15.11", "a buffer without momentum", "if momentum:", "if True:", kind="edge"),
    Mutant("15.11", "all at once", "(step + f * local_steps // fragments) % local_steps", "step % local_steps"),
    Mutant("15.11", "steps from 0", "(step + f", "(step - 1 + f", kind="edge"),
    Mutant("15.11", "in the other order", "(step + f *", "(step - f *"),
    Mutant(
        "15.11",
        "H / fragments, rounded down",
        "f * local_steps // fragments",
        "f * (local_steps // fragments)",
        kind="edge",
    ),
    Mutant("15.11", "every fragment in each part", "% local_steps == 0", "% (local_steps // fragments) == 0"),
    Mutant(
        "15.11",
        "the sign of the pseudo-gradient",
        "start - np.mean(workers, axis=0)",
        "np.mean(workers, axis=0) - start",
    ),
    Mutant("15.11", "a sum", "np.mean(workers, axis=0)", "np.sum(workers, axis=0)"),
    Mutant("15.11", "the first worker's", "np.mean(workers, axis=0)", "workers[0]"),
    Mutant(
        "15.11",
        "the start is not restored",
        "outer_step(start, pseudo_gradient, momentum_buffer, lr, momentum)",
        "start[...] = workers[0]\n    outer_step(start, pseudo_gradient, momentum_buffer, lr, momentum)",
    ),
    Mutant("15.11", "workers go on from their own", "weights[...] = start", "pass"),
    Mutant(
        "15.11",
        "one worker goes on from its own",
        "for weights in workers:",
        "for weights in workers[1:]:",
        kind="edge",
    ),
    Mutant("15.11", "every worker steps by itself", "weights[...] = start", "weights -= lr * pseudo_gradient"),
    # 15.12 bytes
    Mutant(
        "15.12",
        "(N - 1) / N once",
        "return 2 * (ranks - 1) / ranks * 4 * m * n",
        "return (ranks - 1) / ranks * 4 * m * n",
    ),
    Mutant("15.12", "elements, not bytes", "/ ranks * 4 * m * n", "/ ranks * m * n"),
    Mutant("15.12", "an all-reduce of bytes", "(ranks - 1) * (m * n + 4)", "2 * (ranks - 1) / ranks * (m * n + 4)"),
    Mutant("15.12", "no scale", "(ranks - 1) * (m * n + 4)", "(ranks - 1) * m * n"),
    Mutant("15.12", "a part of a byte", "ceil(m * n / 8)", "m * n / 8", kind="edge"),
    Mutant("15.12", "the last bits are left out", "ceil(m * n / 8)", "(m * n // 8)", kind="edge"),
    Mutant("15.12", "values alone", "ceil(share * m * n) * (4 + 4)", "ceil(share * m * n) * 4"),
    Mutant("15.12", "a part of an element", "ceil(share * m * n)", "share * m * n", kind="edge"),
    Mutant(
        "15.12",
        "an all-gather of P and Q",
        "return 2 * (ranks - 1) / ranks * 4 * min(",
        "return (ranks - 1) * 4 * min(",
    ),
    Mutant("15.12", "P alone", "rank * (m + n))", "rank * m)"),
    Mutant("15.12", "always P and Q", "min(m * n, rank * (m + n))", "rank * (m + n)"),
    Mutant("15.12", "at 1 / share both are equal", "ceil(1 / share) - 1", "ceil(1 / share)", kind="edge"),
    Mutant("15.12", "without indices", "ceil(1 / share) - 1", "ceil(2 / share) - 1"),
    Mutant("15.12", "one all-reduce half", "wait = 2 * (ranks - 1)", "wait = (ranks - 1)"),
    Mutant("15.12", "rounded down", "max(1, ceil(busy * wait", "max(1, int(busy * wait", kind="edge"),
    Mutant(
        "15.12",
        "no step at all",
        "max(1, ceil(busy * wait / ((1 - busy) * compute)))",
        "ceil(busy * wait / ((1 - busy) * compute))",
        kind="edge",
    ),
    Mutant(
        "15.12",
        "waiting for so long as computing",
        "ceil(busy * wait / ((1 - busy) * compute))",
        "ceil(wait / compute)",
    ),
    Mutant("15.12", "a share of computing, not of the time", "(1 - busy) * compute", "compute"),
    # 15.13 the residual
    Mutant("15.13", "no residual", "+ self.residuals.get(name, 0.0)", ""),
    Mutant(
        "15.13",
        "the start is never warm",
        "if name not in self.qs:\n    self.qs[name] = first_q(name, gradient.shape[1], self.rank)",
        "self.qs[name] = first_q(name, gradient.shape[1], self.rank)",
    ),
    Mutant(
        "15.13",
        "a parameter that changes its bucket loses its residual",
        """
        corrected = gradient + self.residuals.get(name, 0.0)
        """,
        """
        here = self.residuals.get((number, name))
        corrected = gradient + (self.residuals.get(name, 0.0) if here is not None or not self.residuals else 0.0)
        self.residuals[number, name] = True
        """,
    ),
    Mutant(
        "15.13",
        "residuals of this step alone",
        "self.residuals[name] = corrected - found[name]",
        "self.residuals[name] = gradient - found[name]",
    ),
    Mutant("15.13", "Q of the gradient alone", "self.qs[name] = corrected.T @ p", "self.qs[name] = gradient.T @ p"),
    Mutant(
        "15.13",
        "shared by all models",
        """
        corrected = gradient + self.residuals.get(name, 0.0)
        """,
        """
        LowRank.kept = self.residuals = vars(LowRank).get("kept") or self.residuals
        corrected = gradient + self.residuals.get(name, 0.0)
        """,
        kind="second call",
    ),
    Mutant(
        "15.13",
        "works in place",
        "corrected = gradient + self.residuals.get(name, 0.0)",
        "gradient += self.residuals.get(name, 0.0)\n            corrected = gradient",
        kind="lent",
    ),
]
