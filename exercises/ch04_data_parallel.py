"""Chapter 4: data parallelism, from one exact sum to gradients that travel while backward goes on.

You may use what is imported below, NumPy, and the functions that you write here. Functions that take a ``group`` are
one rank's part; all its ranks call them together. ``minidist check 4`` judges, ``minidist check --hint 4.4`` helps.

``fill_buckets`` and ``BucketedDataParallel`` have the names and arguments of minidist's own, so the library can train
on them:

    minidist train --dp 4 --bucket-mb 0.1 --impl exercises
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_reduce, broadcast


def order_free_sum(terms: Sequence[np.ndarray]) -> np.ndarray:
    """4.1  The sum of some float32 arrays, with bits that do not depend on the order of the terms.

    Args:
        terms: n float32 arrays of one shape, at least one; not changed. Where they are added up, element by element,
            the largest is less than 2^29 / n times the smallest (zeros aside).

    Returns:
        A new float32 array of that shape: the exact sum, rounded once.

    Cost: one float64 array for the sum, and what one addition needs. The terms are never gathered into one array.
    """
    raise NotImplementedError("task 4.1")


def accumulate(
    micro_batches: Sequence[np.ndarray], loss_and_gradient: Callable[[np.ndarray], tuple[float, np.ndarray]]
) -> tuple[float, np.ndarray]:
    """4.2  The mean loss over all samples of some micro-batches, and its gradient.

    Every sample weighs the same, whichever micro-batch it is in. What a micro-batch yields is a mean already, so it has
    to be made a sum again first.

    Args:
        micro_batches: at least one array, its samples along the first axis: ``len`` of it, at least one. They are
            not equally large.
        loss_and_gradient: call it once for each micro-batch, in order. It returns the mean loss over the micro-batch's
            samples, a float, and the gradient of that mean, a float32 array. The next call overwrites the array.

    Returns:
        The mean loss, a float, and its gradient, a new float32 array: summed in float64, divided once by the number of
        all samples, and then rounded once.

    Cost: one float64 array for the sum, and what one addition needs, however many micro-batches there are.
    """
    raise NotImplementedError("task 4.2")


def fill_buckets(parameters: Sequence, elements: float) -> list[list]:
    """4.3  Cut a list of parameters into buckets, keeping its order.

    A bucket takes the next parameter if all in it have at most ``elements`` elements together, that one included;
    otherwise the next bucket begins with it. A parameter that is larger than a bucket is alone in one of its own.

    Args:
        parameters: things with a ``size``, their number of elements; any number of them, none included. Not changed.
        elements: the most that a bucket holds, more than 0; not always a whole number.

    Returns:
        The buckets, lists of those same parameters. None is empty.
    """
    raise NotImplementedError("task 4.3")


class BucketedDataParallel:
    """4.4  Gradients summed over the ranks, one all-reduce for each bucket, from within backward.

    A bucket is a flat buffer of which the gradients of some parameters are views: what backward adds to a gradient it
    adds to the buffer, and what an all-reduce writes into the buffer is in the gradients. When a bucket is full, all
    its gradients being complete, its all-reduce starts, and backward goes on meanwhile.

    All ranks must start the all-reduces in the same order: that of ``buckets``. But gradients may be completed in
    another order on each rank, and a rank without a micro-batch completes none. So a bucket that is full before those
    in front of it waits for its turn, and what has not started when backward is over is started then.

    It is built on ``fill_buckets``, task 4.3. A step goes like this: ``zero_grad``; backward of all micro-batches but
    the last within ``no_sync``; backward of the last one; ``wait_for_gradients``. Nothing is divided: gradients are
    summed.

    Args:
        parameters: the model's, in the same order on every rank.
        group: the data-parallel ranks.
        algorithm: of the all-reduce, as its argument of that name takes it.
        reduce_dtype: gradients are accumulated and summed in it.
        bucket_mb: the size of a bucket in MiB.
        overlap: start all-reduces from within backward; without it ``on_gradient`` is never called.
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
        """Begin a step: all gradients are zero, and views of the buffers."""
        for bucket, buffer in zip(self.buckets, self.buffers, strict=True):
            buffer[:] = 0
            ends = np.cumsum([parameter.size for parameter in bucket])
            for parameter, view in zip(bucket, np.split(buffer, ends[:-1]), strict=True):
                parameter.grad = view.reshape(parameter.shape)
        self.awaited = [set(bucket) for bucket in self.buckets]  # the parameters whose gradients are not complete yet
        self.works = []  # what all_reduce returned, for each bucket that has started, in their order

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Within it backward only accumulates: gradients are not complete, and nothing is sent."""
        self.syncing = False
        try:
            yield
        finally:
            self.syncing = True

    def start_next(self) -> None:
        """Start the all-reduce of the first bucket that has not started, and return without waiting for it."""
        raise NotImplementedError("task 4.4")

    def on_gradient(self, parameter) -> None:
        """Backward calls this for each parameter, once in each micro-batch, as soon as its gradient is complete.

        Starts every bucket whose turn has come with it; none within ``no_sync``.
        """
        raise NotImplementedError("task 4.4")

    def wait_for_gradients(self) -> None:
        """End a step: start the buckets that have not started, and return when every gradient is the sum of all."""
        raise NotImplementedError("task 4.4")


def fit(
    features: np.ndarray, targets: np.ndarray, samples: int, steps: int, lr: float, group: ProcessGroup
) -> tuple[list[float], np.ndarray]:
    """4.5  Debugging: linear regression by gradient descent, each rank with samples of its own.

    The loss is the mean of the squared errors over the samples of all ranks. On one rank all is well. On more the loss
    falls too, only more slowly: the team has learned to raise the learning rate with the number of ranks, and believes
    that this is a law. Find out why, and mend it: any number of ranks has to do what one rank does with all samples.

    Args:
        features: (this rank's samples, features) float64. Ranks may have different numbers of samples, or none.
        targets: (this rank's samples,) float64.
        samples: how many samples all ranks have together.
        steps, lr: of gradient descent, from weights that are zero.
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
        message = np.append(gradient, loss)  # both in one message
        all_reduce(message, ReduceOp.AVG, group)
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
    """4.6  Debugging: a net of two layers, trained by data parallelism.

    Every rank can read all samples. In each epoch they are shuffled and then used up, ``batch`` samples a step; of
    these, each rank works on its part. On one rank all is well. On several the loss falls too, and a checksum of the
    weights, taken after every step, finds no two ranks apart. But the net is not the one that one rank trains, from the
    first step on, and not for rounding. Find out why, and mend it: any number of ranks has to train the net that
    one rank trains now.

    Args:
        features, targets: (samples, features) and (samples,), float64, the same on every rank.
        hidden: the width of the hidden layer.
        epochs, batch, lr: of gradient descent. The last batch of an epoch may be smaller.
        seed: of all that is random.
        group: the ranks.

    Returns:
        The loss of each step, and the weights of both layers, (features, hidden) and (hidden,).
    """
    rng = np.random.default_rng(seed + group.rank)
    first = rng.normal(size=(features.shape[1], hidden))
    second = rng.normal(size=hidden) / np.sqrt(hidden)
    broadcast(first, 0, group)  # every rank begins with rank 0's weights
    broadcast(second, 0, group)
    losses = []
    for _ in range(epochs):
        order = rng.permutation(len(features))
        for start in range(0, len(features), batch):
            whole = order[start : start + batch]
            mine = np.array_split(whole, group.size)[group.rank]
            activations = np.tanh(features[mine] @ first)  # (samples, hidden)
            errors = activations @ second - targets[mine]  # (samples,)
            behind = np.outer(errors, second) * (1 - activations**2)  # (samples, hidden), the gradient behind tanh
            parts = [[errors @ errors / 2], activations.T @ errors, (features[mine].T @ behind).ravel()]
            sums = np.concatenate(parts)  # the loss and both gradients in one message
            all_reduce(sums, ReduceOp.SUM, group)
            sums /= len(whole)
            losses.append(float(sums[0]))
            second -= lr * sums[1 : 1 + hidden]
            first -= lr * sums[1 + hidden :].reshape(first.shape)
    return losses, first, second


# 4.7  Worksheet: what a data-parallel step costs


def sent_bytes(parameters: int, itemsize: int, ranks: int) -> float:
    """The bytes that each of N ranks sends in a step, by a ring all-reduce of all gradients."""
    raise NotImplementedError("task 4.7")


def step_seconds(compute: float, communication: float, overlap: bool) -> float:
    """The time of a step whose forward and backward take ``compute`` seconds and its all-reduces ``communication``.

    Forward is a third of the compute, backward the rest. With ``overlap``, communication goes on beside backward from
    its very beginning (buckets are infinitely small) and slows nothing down. It cannot go on beside forward.
    """
    raise NotImplementedError("task 4.7")


def hidden_share(compute: float, communication: float) -> float:
    """Which part of the communication (more than 0 s) such an overlap hides: 0 for none of it, 1 for all."""
    raise NotImplementedError("task 4.7")


def run_seconds(seconds: np.ndarray) -> float:
    """The time of a whole run: ``seconds[step, rank]`` is what a rank computes in a step, and each step ends with an
    all-reduce, which takes no time itself, but no rank leaves it before the last has come.
    """
    raise NotImplementedError("task 4.7")


def efficiency(seconds: np.ndarray) -> float:
    """The part of that run's time that its ranks spend computing, on average over the ranks; the rest they wait."""
    raise NotImplementedError("task 4.7")


def mean_step(ranks: int, probability: float, factor: float) -> float:
    """The mean time of a step in which each rank computes for 1 s or, with this probability, for ``factor`` seconds.

    ``factor`` is 1 or more. The ranks have their hiccups independently of each other, and wait for the slowest.
    """
    raise NotImplementedError("task 4.7")
