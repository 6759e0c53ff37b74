"""Chapter 4: data parallelism, from one exact sum to all-reduces that overlap with backward, and exact products.

You may use what is imported below, NumPy, and the functions that you write here. A function with a ``group`` is one
rank's part; all ranks of the group call it together. ``minidist check 4`` grades your code, and
``minidist check --hint 4.4`` gives a hint.

``fill_buckets``, ``BucketedDataParallel``, ``bits_of`` and ``exact_matmul`` have the names and arguments of minidist's
own, so the library can train on yours:

    minidist train --dp 4 --bucket-mb 0.1 --impl exercises
    minidist train --products exact --impl exercises
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_reduce, broadcast


def order_free_sum(terms: Sequence[np.ndarray]) -> np.ndarray:
    """4.1  The sum of float32 arrays, with bits that do not depend on the order of the terms.

    Args:
        terms: n float32 arrays of one shape, n >= 1; do not change them. In every element the largest of the n terms is
            less than 2^29 / n times the smallest (zeros aside).

    Returns:
        A new float32 array of that shape: the exact sum, rounded once.

    Cost: one float64 array for the sum, plus what one addition needs. Never gather the terms into one array.
    """
    # >>> 4.1
    total = np.zeros(terms[0].shape, np.float64)
    for term in terms:
        total += term
    return total.astype(np.float32)
    # <<<


def accumulate(
    micro_batches: Sequence[np.ndarray], loss_and_gradient: Callable[[np.ndarray], tuple[float, np.ndarray]]
) -> tuple[float, np.ndarray]:
    """4.2  The mean loss over all samples of several micro-batches, and its gradient.

    Every sample weighs the same, whichever micro-batch it is in. A micro-batch yields a mean, so turn it back into a
    sum first.

    Args:
        micro_batches: at least one array, with ``len(array) >= 1`` samples along its first axis. Their lengths differ,
            and so may the size of a sample. Do not change them.
        loss_and_gradient: call it once per micro-batch, in order. It returns the mean loss over the micro-batch's
            samples, a float, and the gradient of that mean, a float32 array of any shape. The next call overwrites the
            array.

    Returns:
        The mean loss, a float, and its gradient, a new float32 array: summed in float64, divided once by the total
        number of samples, then rounded once.

    Cost: one float64 array for the sum, plus what one addition needs, however many micro-batches there are.
    """
    # >>> 4.2
    loss, gradient, samples = 0.0, 0.0, 0
    for micro_batch in micro_batches:
        mean_loss, mean_gradient = loss_and_gradient(micro_batch)
        loss += len(micro_batch) * mean_loss
        gradient += len(micro_batch) * mean_gradient.astype(np.float64)
        samples += len(micro_batch)
    return loss / samples, (gradient / samples).astype(np.float32)
    # <<<


def fill_buckets(parameters: Sequence, elements: float) -> list[list]:
    """4.3  Cut a list of parameters into buckets, in order.

    The next parameter joins the current bucket if the bucket then holds at most ``elements`` elements; otherwise it
    starts the next bucket. A parameter larger than a bucket gets a bucket of its own.

    Args:
        parameters: objects with a ``size``, their number of elements; the list may be empty. Do not change it.
        elements: the capacity of a bucket, more than 0; not always an integer.

    Returns:
        The buckets, new lists of those same parameters. None is empty.
    """
    # >>> 4.3
    buckets, room = [], 0.0
    for parameter in parameters:
        if not buckets or parameter.size > room:
            buckets.append([])
            room = elements
        buckets[-1].append(parameter)
        room -= parameter.size
    return buckets
    # <<<


class BucketedDataParallel:
    """4.4  Sum gradients over the ranks, one all-reduce per bucket, started during backward.

    A bucket is a flat buffer, and the gradients of its parameters are views of it: backward accumulates into the
    buffer, and what the all-reduce writes into the buffer is in the gradients. When all its gradients are complete, a
    bucket is full. Its all-reduce starts while backward goes on.

    All ranks must start the all-reduces in the same order, that of ``buckets``. But each rank may complete its
    gradients in a different order, and a rank without a micro-batch completes none. So a bucket that is full before
    its predecessors waits its turn, and buckets not started by the end of backward start then.

    The class is built on ``fill_buckets``, task 4.3. One step: ``zero_grad``; backward of every micro-batch but the
    last under ``no_sync``; backward of the last; ``wait_for_gradients``. Gradients are summed, never divided.

    Args:
        parameters: the model's parameters, in the same order on every rank.
        group: the data-parallel ranks.
        algorithm: passed on to ``all_reduce``.
        reduce_dtype: the dtype in which gradients are accumulated and summed, np.float64 or np.float32.
        bucket_mb: bucket size, MiB.
        overlap: start all-reduces during backward; without it ``on_gradient`` is never called.
    """

    def __init__(
        self, parameters, group: ProcessGroup, algorithm="auto", reduce_dtype=np.float64, bucket_mb=1.0, overlap=True
    ) -> None:
        self.group, self.algorithm, self.syncing = group, algorithm, True
        elements = bucket_mb * 2**20 / np.dtype(reduce_dtype).itemsize
        self.buckets = fill_buckets(list(parameters)[::-1], elements)  # backward reaches the last parameters first
        self.buffers = [np.zeros(sum(p.size for p in bucket), reduce_dtype) for bucket in self.buckets]
        self.number_of = {p: number for number, bucket in enumerate(self.buckets) for p in bucket}  # parameter: bucket
        for parameter in self.number_of:
            parameter.grad_dtype = reduce_dtype
            if overlap:
                parameter.register_post_accumulate_grad_hook(self.on_gradient)
        self.zero_grad()

    def zero_grad(self) -> None:
        """Begin a step: zero all gradients and make them views of the buffers."""
        for bucket, buffer in zip(self.buckets, self.buffers, strict=True):
            buffer[:] = 0
            ends = np.cumsum([parameter.size for parameter in bucket])
            for parameter, view in zip(bucket, np.split(buffer, ends[:-1]), strict=True):
                parameter.grad = view.reshape(parameter.shape)
        self.awaited = [set(bucket) for bucket in self.buckets]  # parameters whose gradients are incomplete
        self.works = []  # what all_reduce returned, for each started bucket, in order

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """A context in which backward only accumulates: no gradient is complete, and nothing is sent."""
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True

    def start_next(self) -> None:
        """Start the all-reduce of the first bucket not yet started, and return without waiting for it."""
        # >>> 4.4
        buffer = self.buffers[len(self.works)]
        work = all_reduce(buffer, ReduceOp.SUM, self.group, async_op=True, algorithm=self.algorithm)
        self.works.append(work)
        # <<<

    def on_gradient(self, parameter) -> None:
        """Backward calls this once per parameter and micro-batch, as soon as the gradient has been accumulated.

        Starts every bucket whose turn has now come; none under ``no_sync``.
        """
        # >>> 4.4
        if not self.syncing:
            return
        self.awaited[self.number_of[parameter]].discard(parameter)
        while len(self.works) < len(self.buckets) and not self.awaited[len(self.works)]:
            self.start_next()
        # <<<

    def wait_for_gradients(self) -> None:
        """End a step: start the remaining buckets, and return once every gradient is the sum over all ranks."""
        # >>> 4.4
        while len(self.works) < len(self.buckets):
            self.start_next()
        for work in self.works:
            work.wait()
        # <<<


def fit(
    features: np.ndarray, targets: np.ndarray, samples: int, steps: int, lr: float, group: ProcessGroup
) -> tuple[list[float], np.ndarray]:
    """4.5  Debugging: linear regression by gradient descent, with different samples on each rank.

    The loss is the mean squared error over the samples of all ranks. One rank trains correctly. On more ranks the loss
    falls too, but more slowly. The team has learned to raise the learning rate with the number of ranks and takes that
    for a law. Find out why, and fix it: any number of ranks must do what one rank does with all samples.

    Args:
        features: (this rank's samples, features) float64. Ranks may have different numbers of samples, or none.
        targets: (this rank's samples,) float64.
        samples: number of samples on all ranks together.
        steps, lr: of gradient descent, starting from zero weights.
        group: the ranks.

    Returns:
        The loss before each step, and the weights after the last, (features,), the same on every rank.
    """
    weights = np.zeros(features.shape[1])
    losses = []
    for _ in range(steps):
        errors = features @ weights - targets  # (this rank's samples,)
        loss = errors @ errors / samples
        gradient = 2 * features.T @ errors / samples  # (features,)
        # >>> 4.5
        message = np.append(gradient, loss)  # both in one message
        all_reduce(message, ReduceOp.SUM, group)
        # === given to the learner
        # message = np.append(gradient, loss)  # both in one message
        # all_reduce(message, ReduceOp.AVG, group)
        # <<<
        losses.append(float(message[-1]))
        weights -= lr * message[:-1]
    return losses, weights


def train_net(
    features: np.ndarray,
    targets: np.ndarray,
    hidden: int,
    epochs: int,
    batch: int,
    lr: float,
    seed: int,
    group: ProcessGroup,
) -> tuple[list[float], np.ndarray, np.ndarray]:
    """4.6  Debugging: a two-layer network, trained with data parallelism.

    Every rank can read all samples. Each epoch shuffles them and takes ``batch`` samples per step; each rank works on
    its share of these. One rank trains correctly. On several ranks the loss falls too, and a checksum of the weights
    after every step is the same on all ranks. But from the first step on the network is not the one that one rank
    trains, and rounding is not the reason. Find out why, and fix it: any number of ranks must train the network that
    one rank trains now.

    Args:
        features, targets: (samples, features) and (samples,), float64, the same on every rank.
        hidden: width of the hidden layer.
        epochs, batch, lr: of gradient descent. The last batch of an epoch may be smaller.
        seed: seeds all randomness.
        group: the ranks.

    Returns:
        The loss of each step, and the weights of both layers, (features, hidden) and (hidden,).
    """
    # >>> 4.6
    rng = np.random.default_rng(seed)
    # === given to the learner
    # rng = np.random.default_rng(seed + group.rank)
    # <<<
    first = rng.normal(size=(features.shape[1], hidden))
    second = rng.normal(size=hidden) / np.sqrt(hidden)
    broadcast(first, 0, group)  # every rank starts from rank 0's weights
    broadcast(second, 0, group)
    losses = []
    for _ in range(epochs):
        order = rng.permutation(len(features))
        for start in range(0, len(features), batch):
            indices = order[start : start + batch]
            mine = np.array_split(indices, group.size)[group.rank]
            activations = np.tanh(features[mine] @ first)  # (samples, hidden)
            errors = activations @ second - targets[mine]  # (samples,)
            behind = np.outer(errors, second) * (1 - activations**2)  # (samples, hidden), the gradient behind tanh
            parts = [[errors @ errors / 2], activations.T @ errors, (features[mine].T @ behind).ravel()]
            sums = np.concatenate(parts)  # the loss and both gradients in one message
            all_reduce(sums, ReduceOp.SUM, group)
            sums /= len(indices)
            losses.append(float(sums[0]))
            second -= lr * sums[1 : 1 + hidden]
            first -= lr * sums[1 + hidden :].reshape(first.shape)
    return losses, first, second


# 4.7  Worksheet: what a data-parallel step costs


def sent_bytes(parameters: int, itemsize: int, ranks: int) -> float:
    """Bytes that each of N ranks sends per step, for a ring all-reduce of all gradients; on average over the ranks,
    where the parameters do not divide evenly.
    """
    # >>> 4.7
    return 2 * (ranks - 1) / ranks * parameters * itemsize
    # <<<


def step_seconds(compute: float, communication: float, overlap: bool) -> float:
    """Time of a step whose forward and backward take ``compute`` seconds and its all-reduces ``communication``.

    Forward is a third of the compute, backward the rest. With ``overlap``, communication runs concurrently with
    backward from its very start (buckets are infinitely small) and slows nothing down. It cannot overlap with forward.
    """
    # >>> 4.7
    forward, backward = compute / 3, 2 * compute / 3
    return forward + (max(backward, communication) if overlap else backward + communication)
    # <<<


def hidden_share(compute: float, communication: float) -> float:
    """The fraction of the communication (more than 0 s) that this overlap hides: 0 for none, 1 for all."""
    # >>> 4.7
    return min(1.0, 2 * compute / 3 / communication)
    # <<<


def run_seconds(seconds: np.ndarray) -> float:
    """Time of a run in which ``seconds[step, rank]`` is a rank's compute time in a step. Each step ends with an
    all-reduce, which takes no time itself, but no rank leaves it before the last rank has entered.
    """
    # >>> 4.7
    return float(seconds.max(axis=1).sum())
    # <<<


def efficiency(seconds: np.ndarray) -> float:
    """The fraction of that run's time that ranks spend computing, averaged over the ranks; the rest is waiting."""
    # >>> 4.7
    return float(seconds.sum(axis=0).mean() / run_seconds(seconds))
    # <<<


def mean_step(ranks: int, probability: float, factor: float) -> float:
    """Mean time of a step in which each rank computes for 1 s or, with this probability, for ``factor`` seconds.

    ``factor`` is 1 or more. Hiccups are independent from rank to rank, and all ranks wait for the slowest.
    """
    # >>> 4.7
    somebody = 1 - (1 - probability) ** ranks
    return 1 + (factor - 1) * somebody
    # <<<


# 4.8 to 4.10  Exact products: the same bits on every machine


def bits_of(count: int, factors: int = 1) -> int:
    """4.8  The bits that a factor may have, so that float64 holds a sum of products exactly in any order.

    A factor of b bits is an integer from -2^b to 2^b. float64 holds all integers from -2^53 to 2^53. So neither the sum
    of the products nor a sum of some of them may lie outside.

    Args:
        count: number of products in the sum, from 1 to 2^50.
        factors: number of factors of each product: 2 in a matrix product, 1 in a plain sum.

    Returns:
        The largest b for which that holds, the same for all factors, but at most 51: the library's rounding needs that.
    """
    # >>> 4.8
    return min(51, (53 - (count - 1).bit_length()) // factors)
    # <<<


def power_above(x: np.ndarray, axis: int) -> np.ndarray:
    """The least power of two above all magnitudes along the axis, in float64; any power of two if all are 0.

    The axis remains, with a length of 1.
    """
    _, exponent = np.frexp(np.abs(x).max(axis=axis, keepdims=True))
    return np.ldexp(1.0, exponent)


def exact_matmul(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """4.9  ``a @ b`` with one result, whatever the machine, the order of its sums, and the other rows.

    First the factors are rounded, to b bits each (4.8). Where 2^e is the least power of two above all magnitudes in a
    row of ``a``, the row becomes integers times 2^(e - b). So does each column of ``b``, with an e of its own. An
    element halfway between two integers becomes the even one. From there on everything is exact, and the result is
    rounded once, at the end.

    Args:
        a: (..., n, k) float32 or float64, k >= 1, finite; do not change it.
        b: (..., k, m) of the same dtype; do not change it. Leading axes broadcast, as in ``np.matmul``.

    Returns:
        A new array (..., n, m) of that dtype. A sum that is zero is +0; a negative one that rounds to zero is -0.
    """
    # >>> 4.9
    bits = bits_of(a.shape[-1], factors=2)
    above_rows, above_columns = power_above(a, -1), power_above(b, -2)  # (..., n, 1) and (..., 1, m)
    rows = np.rint(a / above_rows * 2.0**bits)  # integers, in float64
    columns = np.rint(b / above_columns * 2.0**bits)
    product = rows @ columns * (above_rows * above_columns * 4.0**-bits)
    return (product + 0.0).astype(a.dtype)  # -0 + 0 is 0
    # <<<


def mix(weights: np.ndarray, values: np.ndarray) -> np.ndarray:
    """4.10  Debugging: attention weights times values, in exact products.

    The result depends neither on the machine nor on the order of the tokens in the sum. But a causal model that uses it
    is not causal. The weight of a later token is 0, and yet its value changes the last bits of rows that must not know
    of it. Find out through which scale it does, and fix it: a row of the result must not depend on a value whose weight
    in it is 0. Values may differ in size by any factor, so leave out no scale. Keep to scales from ``power_above``,
    which are exact: then there is one right result, bit for bit.

    Args:
        weights: (..., n, k) float32 or float64, finite; do not change them.
        values: (..., k, m) of the same dtype, finite: a row for each token; do not change them.

    Returns:
        A new array (..., n, m) of that dtype. A sum that is zero is +0; a negative one that rounds to zero is -0.
    """
    bits = bits_of(values.shape[-2], factors=2)
    # >>> 4.10
    scale = power_above(values, -1)  # (..., k, 1), a row of values is a token's own
    weights = weights * scale.swapaxes(-1, -2)  # what a sum over the tokens cannot take out goes into its other factor
    above_rows = power_above(weights, -1)  # (..., n, 1)
    rows = np.rint(weights / above_rows * 2.0**bits)
    columns = np.rint(values / scale * 2.0**bits)
    product = rows @ columns * (above_rows * 4.0**-bits)
    # === given to the learner
    # scale = power_above(values, -2)  # (..., 1, m)
    # above_rows = power_above(weights, -1)  # (..., n, 1)
    # rows = np.rint(weights / above_rows * 2.0**bits)
    # columns = np.rint(values / scale * 2.0**bits)
    # product = rows @ columns * (above_rows * scale * 4.0**-bits)
    # <<<
    return (product + 0.0).astype(values.dtype)
