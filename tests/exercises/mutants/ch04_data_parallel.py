"""Mutants for chapter 4."""

from minidist.course.authoring.mutants import WHOLE, Mutant

MUTANTS = [
    # 4.1 order_free_sum
    Mutant("4.1", "summed in float32", "np.float64", "np.float32"),
    Mutant("4.1", "rounded after each term", "total += term", "total += term; total[:] = total.astype(np.float32)"),
    Mutant(
        "4.1",
        "only every second rounding is skipped",
        WHOLE,
        """
        pairs = [sum(terms[i : i + 2]) for i in range(0, len(terms), 2)]
        return sum(pair.astype(np.float64) for pair in pairs).astype(np.float32)
        """,
    ),
    Mutant("4.1", "not rounded at all", ".astype(np.float32)", ""),
    Mutant("4.1", "sums into the first term", "np.zeros(terms[0].shape, np.float64)", "terms[0]"),
    Mutant(
        "4.1",
        "sorted first: independent of order, but not exact",
        WHOLE,
        "return np.sort(np.stack(terms), axis=0).sum(axis=0)",
    ),
    Mutant(
        "4.1",
        "compensated in float32 (Kahan)",
        WHOLE,
        """
        total = np.zeros_like(terms[0])
        lost = np.zeros_like(terms[0])
        for term in terms:
            corrected = term - lost
            new = total + corrected
            lost = (new - total) - corrected
            total = new
        return total
        """,
    ),
    Mutant(
        "4.1",
        "gathers all terms first",
        WHOLE,
        "return np.stack(terms).sum(axis=0, dtype=np.float64).astype(np.float32)",
    ),
    Mutant(
        "4.1",
        "returns a single term as it is",
        "return total.astype(np.float32)",
        "return terms[0] if len(terms) == 1 else total.astype(np.float32)",
        kind="lent",
    ),
    Mutant(
        "4.1",
        "takes the terms out of the caller's list",
        """
        for term in terms:
            total += term
        """,
        """
        terms = terms if isinstance(terms, list) else list(terms)
        while terms:
            total += terms.pop()
        """,
        kind="lent",
    ),
    Mutant(
        "4.1",
        "returns an array that it keeps for sums of this shape",
        "return total.astype(np.float32)",
        """kept = globals().setdefault("KEPT", {}).setdefault(total.shape, np.empty(total.shape, np.float32))
    kept[...] = total
    return kept""",
        kind="second call",
    ),
    Mutant(
        "4.1",
        "reads the memory of a term, not its elements",
        "total += term",
        "total += np.frombuffer(term, np.float32).reshape(term.shape)",
        kind="edge",
    ),
    # 4.2 accumulate
    Mutant(
        "4.2",
        "the mean of the means",
        WHOLE,
        """
        loss, gradient = 0.0, 0.0
        for micro_batch in micro_batches:
            mean_loss, mean_gradient = loss_and_gradient(micro_batch)
            loss += mean_loss
            gradient += mean_gradient.astype(np.float64)
        return loss / len(micro_batches), (gradient / len(micro_batches)).astype(np.float32)
        """,
    ),
    Mutant("4.2", "only the loss is a mean of means", "loss += len(micro_batch) * mean_loss", "loss += mean_loss"),
    Mutant("4.2", "summed in float32", "mean_gradient.astype(np.float64)", "mean_gradient"),
    Mutant("4.2", "not divided", "(gradient / samples)", "gradient"),
    Mutant(
        "4.2",
        "keeps references to the gradients: all are the last one",
        WHOLE,
        """
        results = [loss_and_gradient(micro_batch) for micro_batch in micro_batches]
        sizes = [len(micro_batch) for micro_batch in micro_batches]
        loss = sum(size * loss for size, (loss, _) in zip(sizes, results))
        gradient = sum(size * gradient.astype(np.float64) for size, (_, gradient) in zip(sizes, results))
        return loss / sum(sizes), (gradient / sum(sizes)).astype(np.float32)
        """,
    ),
    Mutant(
        "4.2",
        "keeps a copy of every gradient",
        WHOLE,
        """
        sizes = [len(micro_batch) for micro_batch in micro_batches]
        losses, gradients = [], []
        for micro_batch in micro_batches:
            loss, gradient = loss_and_gradient(micro_batch)
            losses.append(loss)
            gradients.append(gradient.copy())
        loss = sum(size * loss for size, loss in zip(sizes, losses)) / sum(sizes)
        gradient = sum(size * gradient.astype(np.float64) for size, gradient in zip(sizes, gradients)) / sum(sizes)
        return loss, gradient.astype(np.float32)
        """,
    ),
    Mutant(
        "4.2",
        "divides before summing",
        WHOLE,
        """
        samples = sum(len(micro_batch) for micro_batch in micro_batches)
        loss, gradient = 0.0, 0.0
        for micro_batch in micro_batches:
            mean_loss, mean_gradient = loss_and_gradient(micro_batch)
            weight = len(micro_batch) / samples
            loss += weight * mean_loss
            gradient += weight * mean_gradient.astype(np.float64)
        return loss, gradient.astype(np.float32)
        """,
    ),
    Mutant(
        "4.2",
        "two passes: each micro-batch is computed twice",
        WHOLE,
        """
        samples = sum(len(micro_batch) for micro_batch in micro_batches)
        loss = sum(len(micro_batch) * loss_and_gradient(micro_batch)[0] for micro_batch in micro_batches)
        gradient = 0.0
        for micro_batch in micro_batches:
            gradient += len(micro_batch) * loss_and_gradient(micro_batch)[1].astype(np.float64)
        return loss / samples, (gradient / samples).astype(np.float32)
        """,
    ),
    Mutant(
        "4.2",
        "returns the gradient of a single micro-batch as it came",
        "loss, gradient, samples = 0.0, 0.0, 0",
        """if len(micro_batches) == 1:
        return loss_and_gradient(micro_batches[0])
    loss, gradient, samples = 0.0, 0.0, 0""",
        kind="lent",
    ),
    Mutant(
        "4.2",
        "takes the micro-batches out of the caller's list",
        "for micro_batch in micro_batches:",
        """micro_batches = micro_batches if isinstance(micro_batches, list) else list(micro_batches)
    while micro_batches:
        micro_batch = micro_batches.pop(0)""",
        kind="lent",
    ),
    Mutant(
        "4.2",
        "returns an array that it keeps for gradients of this shape",
        "return loss / samples, (gradient / samples).astype(np.float32)",
        """kept = globals().setdefault("KEPT", {}).setdefault(gradient.shape, np.empty(gradient.shape, np.float32))
    kept[...] = gradient / samples
    return loss / samples, kept""",
        kind="second call",
    ),
    Mutant(
        "4.2",
        "counts the elements of a micro-batch, not its samples",
        """
        loss += len(micro_batch) * mean_loss
        gradient += len(micro_batch) * mean_gradient.astype(np.float64)
        samples += len(micro_batch)
        """,
        """
        loss += micro_batch.size * mean_loss
        gradient += micro_batch.size * mean_gradient.astype(np.float64)
        samples += micro_batch.size
        """,
        kind="edge",
    ),
    Mutant(
        "4.2",
        "a flat gradient, whatever its shape",
        "(gradient / samples).astype",
        "(gradient / samples).ravel().astype",
        kind="edge",
    ),
    # 4.3 fill_buckets
    Mutant("4.3", "an exact fit starts a new bucket", "parameter.size > room", "parameter.size >= room"),
    Mutant(
        "4.3", "the first bucket is empty", "if not buckets or parameter.size > room:", "if parameter.size >= room:"
    ),
    Mutant("4.3", "counts the parameters of all buckets against one", "room = elements", "room = room or elements"),
    Mutant("4.3", "the space in a bucket never shrinks", "room -= parameter.size", "pass"),
    Mutant("4.3", "one parameter per bucket", "room = elements", "room = 0"),
    Mutant(
        "4.3",
        "closes a bucket only when it overflows",
        WHOLE,
        """
        buckets, filled = [], elements
        for parameter in parameters:
            if filled >= elements:
                buckets.append([])
                filled = 0
            buckets[-1].append(parameter)
            filled += parameter.size
        return buckets
        """,
    ),
    Mutant(
        "4.3",
        "the last bucket is forgotten",
        WHOLE,
        """
        buckets, bucket, filled = [], [], 0
        for parameter in parameters:
            if bucket and filled + parameter.size > elements:
                buckets.append(bucket)
                bucket, filled = [], 0
            bucket.append(parameter)
            filled += parameter.size
        return buckets
        """,
    ),
    Mutant(
        "4.3",
        "parameters go back to any bucket with space",
        WHOLE,
        """
        buckets = []
        for parameter in parameters:
            for bucket in buckets:
                if sum(other.size for other in bucket) + parameter.size <= elements:
                    bucket.append(parameter)
                    break
            else:
                buckets.append([parameter])
        return buckets
        """,
    ),
    Mutant(
        "4.3",
        "the library's own",
        WHOLE,
        "from minidist.parallel import data; return data.fill_buckets(parameters, elements)",
    ),
    Mutant(
        "4.3",
        "returns a list that it fills again in the next call",
        "buckets, room = [], 0.0",
        """buckets, room = globals().setdefault("BUCKETS", []), 0.0
    buckets.clear()""",
        kind="second call",
    ),
    Mutant(
        "4.3",
        "the only bucket is the caller's list",
        "buckets, room = [], 0.0",
        """if isinstance(parameters, list) and 0 < sum(parameter.size for parameter in parameters) <= elements:
        return [parameters]
    buckets, room = [], 0.0""",
        kind="lent",
    ),
    Mutant(
        "4.3",
        "nothing joins a full bucket, not even a parameter without elements",
        "parameter.size > room:",
        "parameter.size > room or room == 0:",
        kind="edge",
    ),
    # 4.4 BucketedDataParallel
    Mutant(
        "4.4",
        "wait_for_gradients starts the rest but does not wait",
        """
        for work in self.works:
            work.wait()
        """,
        "",
    ),
    Mutant(
        "4.4",
        "buckets not started by the end of backward never start",
        """
        while len(self.works) < len(self.buckets):
            self.start_next()
        """,
        "",
    ),
    Mutant("4.4", "the all-reduce blocks backward", "async_op=True", "async_op=False"),
    Mutant(
        "4.4",
        "waits for each all-reduce right after starting it",
        "self.works.append(work)",
        "self.works.append(work); work.wait()",
    ),
    Mutant("4.4", "sends under no_sync", "if not self.syncing:", "if False:"),
    Mutant("4.4", "always the first buffer", "self.buffers[len(self.works)]", "self.buffers[0]"),
    Mutant("4.4", "averages, although the division happens elsewhere", "ReduceOp.SUM", "ReduceOp.AVG"),
    Mutant("4.4", "a copy is all-reduced", "all_reduce(buffer,", "all_reduce(buffer.copy(),"),
    Mutant("4.4", "the algorithm is not passed on", ", algorithm=self.algorithm", ""),
    Mutant(
        "4.4",
        "starts at most one bucket per gradient",
        "while len(self.works) < len(self.buckets) and not",
        "if len(self.works) < len(self.buckets) and not",
    ),
    Mutant(
        "4.4",
        "all start when the last bucket is full",
        "and not self.awaited[len(self.works)]:",
        "and not any(self.awaited):",
    ),
    Mutant(
        "4.4",
        "nothing starts before wait_for_gradients",
        """
        while len(self.works) < len(self.buckets) and not self.awaited[len(self.works)]:
            self.start_next()
        """,
        "",
    ),
    Mutant(
        "4.4",
        "starts a bucket when it is full, out of turn",
        """
        while len(self.works) < len(self.buckets) and not self.awaited[len(self.works)]:
            self.start_next()
        """,
        """
        number = self.number_of[parameter]
        if not self.awaited[number]:
            buffer = self.buffers[number]
            self.works.append(all_reduce(buffer, ReduceOp.SUM, self.group, async_op=True, algorithm=self.algorithm))
        """,
    ),
    Mutant(
        "4.4",
        "sends each bucket at its first gradient",
        "and not self.awaited[len(self.works)]:",
        "and len(self.awaited[len(self.works)]) < len(self.buckets[len(self.works)]):",
    ),
    Mutant(
        "4.4",
        "one all-reduce per gradient",
        """
        self.awaited[self.number_of[parameter]].discard(parameter)
        while len(self.works) < len(self.buckets) and not self.awaited[len(self.works)]:
            self.start_next()
        """,
        """
        all_reduce(parameter.grad, ReduceOp.SUM, self.group, algorithm=self.algorithm)
        self.works.append(all_reduce(np.zeros(0), ReduceOp.SUM, self.group, async_op=True))
        """,
    ),
    Mutant(
        "4.4",
        "sends every buffer as float64",
        "self.buffers[len(self.works)]",
        "self.buffers[len(self.works)].view(np.float64)",
        kind="dtype",
    ),
    Mutant(
        "4.4",
        "sums in float64 and rounds to float32",
        "for work in self.works:",
        """for buffer in self.buffers:
            buffer[:] = buffer.astype(np.float32)
        for work in self.works:""",
        kind="dtype",
    ),
    Mutant(
        "4.4",
        "keeps the buffers of the first model",
        "buffer = self.buffers[len(self.works)]",
        "buffer = globals().setdefault('BUFFERS', {}).setdefault(len(self.works), self.buffers[len(self.works)])",
        kind="second call",
    ),
    Mutant("4.4", "waits for all but the last", "for work in self.works:", "for work in self.works[:-1]:", kind="lent"),
    Mutant("4.4", "waits for the first only", "for work in self.works:", "for work in self.works[:1]:", kind="lent"),
    Mutant(
        "4.4",
        "waits only where there are several buckets",
        "for work in self.works:",
        "for work in self.works if len(self.works) > 1 else ():",
        kind="edge",
    ),
    # 4.5 fit
    Mutant("4.5", "nothing is summed", "all_reduce(message, ReduceOp.SUM, group)", "pass"),
    Mutant(
        "4.5",
        "the mean of the ranks' means",
        """
        message = np.append(gradient, loss)  # both in one message
        all_reduce(message, ReduceOp.SUM, group)
        """,
        """
        message = np.append(gradient, loss) * samples / max(1, len(targets))
        all_reduce(message, ReduceOp.AVG, group)
        """,
    ),
    Mutant(
        "4.5",
        "fixes the gradient but not the loss",
        "all_reduce(message, ReduceOp.SUM, group)",
        "all_reduce(message, ReduceOp.SUM, group); message[-1] /= group.size",
    ),
    Mutant(
        "4.5",
        "each rank adds in an order of its own, so the last bits differ",
        "all_reduce(message, ReduceOp.SUM, group)",
        """from minidist import all_gather_into_tensor
        parts = np.empty((group.size, len(message)))
        all_gather_into_tensor(parts.reshape(-1), message, group)
        message = sum(np.roll(parts, -group.rank, axis=0))""",
        kind="edge",
    ),
    # 4.6 train_net
    Mutant("4.6", "a shared seed, but the wrong one", "default_rng(seed)", "default_rng(0)"),
    Mutant("4.6", "all ranks but the first share a seed", "default_rng(seed)", "default_rng(seed + (group.rank > 0))"),
    Mutant(
        "4.6",
        "goes on with the random numbers of the call before",
        "np.random.default_rng(seed)",
        "globals().setdefault('RNGS', {}).setdefault(seed, np.random.default_rng(seed))",
        kind="second call",
    ),
    # 4.7 worksheet
    Mutant("4.7", "half of the ring", "2 * (ranks - 1)", "(ranks - 1)"),
    Mutant("4.7", "the full gradient to every other rank", "2 * (ranks - 1) / ranks", "(ranks - 1)"),
    Mutant(
        "4.7",
        "communication hides behind forward too",
        "forward + (max(backward, communication)",
        "(max(compute, communication)",
    ),
    Mutant("4.7", "overlap hides everything", "max(backward, communication)", "backward"),
    Mutant("4.7", "hides more than all of it", "min(1.0, 2 * compute / 3 / communication)", "compute / communication"),
    Mutant(
        "4.7",
        "the ranks synchronize only at the end",
        "float(seconds.max(axis=1).sum())",
        "float(seconds.sum(axis=0).max())",
    ),
    Mutant(
        "4.7",
        "the mean of the steps' efficiencies",
        "float(seconds.sum(axis=0).mean() / run_seconds(seconds))",
        "float((seconds.mean(axis=1) / seconds.max(axis=1)).mean())",
    ),
    Mutant("4.7", "the ranks' hiccups add up", "1 - (1 - probability) ** ranks", "probability * ranks"),
    Mutant(
        "4.7",
        "whole elements only",
        "2 * (ranks - 1) / ranks * parameters * itemsize",
        "2 * (ranks - 1) * parameters // ranks * itemsize",
        kind="edge",
    ),
    Mutant(
        "4.7",
        "sorts the caller's table",
        "float(seconds.max(axis=1).sum())",
        "(seconds.sort(axis=1), float(seconds[:, -1].sum()))[1]",
        kind="lent",
    ),
]
