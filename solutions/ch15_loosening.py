"""Chapter 15: loosening the step: parameter servers, stale gradients, compressed gradients, local steps.

In all earlier chapters, every rank waits for every other in every step. Here ranks wait less, or send less, and the
trained weights are different. Each task has a part that is still exact: which update has read which weights, what is
left out of a message and comes later, which mean has no bias.

Most functions have the names and arguments of minidist's own, so the library can train with them:

    minidist train --impl exercises --dp 3 --sync server --staleness 1
    minidist train --impl exercises --dp 3 --compress topk:0.01
    minidist train --impl exercises --dp 3 --sync local --local-steps 10

You may use the imports below, NumPy, and what you write here. ``minidist check 15`` grades this file,
``minidist check --hint 15.5`` gives a hint.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, pi, sin

import numpy as np

Sum = Callable[[np.ndarray], object]  # replaces an array, in place, by its sum over all ranks


def shard_map(sizes: Mapping[str, int], servers: int) -> list[list[str]]:
    """15.1  The parameters that each parameter server holds.

    A server answers every request for its parameters, so none should hold many more elements than the others. The
    largest parameter goes first; each goes to the server that holds the fewest elements so far.

    Args:
        sizes: elements of each parameter, by name. Of two equally large ones, the one that is first here goes first.
        servers: how many there are. Of two that hold equally many elements, the one with the lower number gets the next
            parameter.

    Returns:
        For each server the names of its parameters, in the order in which it got them.
    """
    # >>> 15.1
    shards: list[list[str]] = [[] for _ in range(servers)]
    held = [0] * servers
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        emptiest = held.index(min(held))
        shards[emptiest].append(name)
        held[emptiest] += sizes[name]
    return shards
    # <<<


def may_begin(clocks: Sequence[int], worker: int, staleness: float) -> bool:
    """15.2  Whether a worker may begin its next step: the rule of stale synchronous parallel (Ho et al., 2013).

    Fast workers may run ahead of the slowest one, but not far: a worker that begins a step may have ended at most
    ``staleness`` steps more than the slowest one. With 0 all of them take each step together.

    Args:
        clocks: the number of steps that each worker has ended.
        worker: the one that asks.
        staleness: 0 or more; infinite for no bound.
    """
    # >>> 15.2
    return clocks[worker] - min(clocks) <= staleness
    # <<<


# 15.3  Worksheet: staleness
#
# A parameter server applies each gradient as an update of its own, in the order in which they arrive. The weights have
# version 0 at first, and one more after each update. All workers read version 0 when they begin. A worker whose
# gradient has been applied reads at once, and computes the next gradient from what it has read. The *staleness* of an
# update is the number of updates between the version that its gradient was computed from, and the version that it is
# applied to.


def versions_read(order: Sequence[int]) -> list[int]:
    """The version that each update's gradient was computed from. ``order``: the worker of each update."""
    # >>> 15.3
    read: dict[int, int] = {}
    versions = []
    for update, worker in enumerate(order):
        versions.append(read.get(worker, 0))
        read[worker] = update + 1
    return versions
    # <<<


def staleness_of(order: Sequence[int]) -> list[int]:
    """The staleness of each update."""
    # >>> 15.3
    return [update - version for update, version in enumerate(versions_read(order))]
    # <<<


def workers_staleness(seconds: Sequence[float], worker: int) -> float:
    """The mean staleness of one worker's updates in a long run.

    Worker i takes ``seconds[i]`` for each of its gradients, whatever the others do.
    """
    # >>> 15.3
    return sum(seconds[worker] / each for other, each in enumerate(seconds) if other != worker)
    # <<<


def mean_staleness(seconds: Sequence[float]) -> float:
    """The mean staleness of all updates in a long run of such workers. Fast workers have more of the updates."""
    # >>> 15.3
    return float(len(seconds) - 1)  # each gradient is overtaken by as many as overtake others
    # <<<


def updates_per_second(seconds: Sequence[float], staleness: float) -> float:
    """The gradients that the server gets per second, in a long run, where workers wait by the rule of 15.2.

    ``staleness`` is infinite where nobody waits. A bound gives workers that are late now and then time to catch up.
    Here none ever catches up: the seconds are the same in each step.
    """
    # >>> 15.3
    if staleness == float("inf"):
        return sum(1 / each for each in seconds)
    return len(seconds) / max(seconds)
    # <<<


# 15.4  Descent with old gradients
#
# Gradient descent on x^2 / 2, whose gradient is x, where each gradient comes ``delay`` steps late:
#
#     x(t+1) = x(t) - lr x(t - delay)     and x(t+1) = x(t) in the first ``delay`` steps: nothing has come yet
#
# A solution such as x(t) = z^t has z^(delay+1) - z^delay + lr = 0. So x goes to 0 if all roots z of this are within the
# unit circle. At the largest stable rate one root z = e^(i theta) is on it.


def delayed_descent(lr: float, delay: int, steps: int) -> list[float]:
    """x(0) = 1 to x(steps)."""
    # >>> 15.4
    x = [1.0]
    for step in range(steps):
        gradient = x[step - delay] if step >= delay else 0.0
        x.append(x[step] - lr * gradient)
    return x
    # <<<


def largest_stable_lr(delay: int) -> float:
    """The rate below which x goes to 0: 2 without delay, 1 with a delay of one step. A formula for any delay."""
    # >>> 15.4
    return 2 * sin(pi / (2 * (2 * delay + 1)))
    # <<<


def quickest_lr(delay: int) -> tuple[float, float]:
    """The rate with which x goes to 0 soonest, and the factor by which it then falls in each step of a long run.

    There two real roots of the polynomial meet, so its derivative is 0 too. (Without delay: rate 1, factor 0.)
    """
    # >>> 15.4
    factor = delay / (delay + 1)
    return factor**delay / (delay + 1), factor
    # <<<


class Server:
    """15.5  Debugging: a parameter server on a network that may deliver a message twice.

    A worker that waits too long for an answer sends its gradient again. So a gradient may arrive several times, and a
    copy may be late: after gradients of other workers, and after later ones of the same worker. (The first copies of
    one worker's gradients arrive in their order: 0, 1, 2, ...) Someone noticed that updates were applied twice, and
    added a check. The author tested it with one worker, and saw no error. Two are left: some updates are still applied
    twice, and some workers compute gradients of weights that no version ever had.
    """

    def __init__(self, weights: np.ndarray, lr: float) -> None:
        self.weights, self.lr, self.version = weights.copy(), lr, 0
        # >>> 15.5
        self.ended: dict[int, int] = {}  # worker -> how many of its gradients have been applied
        # === given to the learner
        # self.latest = None  # the gradient that was applied last
        # <<<

    def push(self, worker: int, step: int, gradient: np.ndarray) -> tuple[int, np.ndarray]:
        """Apply a worker's gradient number ``step``, once.

        Returns:
            The newest version and its weights, whether or not the gradient was applied now. The worker goes on with
            them while others push.
        """
        # >>> 15.5
        if step >= self.ended.get(worker, 0):
            self.weights -= self.lr * gradient
            self.version += 1
            self.ended[worker] = step + 1
        return self.version, self.weights.copy()
        # === given to the learner
        # if (worker, step) != self.latest:
        #     self.weights -= self.lr * gradient
        #     self.version += 1
        #     self.latest = worker, step
        # return self.version, self.weights
        # <<<


def top_k(corrected: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """15.6  The k elements that are largest by magnitude, and where they are (Aji & Heafield, 2017).

    Args:
        corrected: one-dimensional, float32 or float64; not modified. No NaN.
        k: from 1 to its number of elements; 0 if it has none.

    Returns:
        Their indices, int32, ascending; and their values, in that order, of the same dtype. Of elements with equal
        magnitudes take those with the lower indices: then all ranks, and all runs, choose the same.
    """
    # >>> 15.6
    indices = np.sort(np.argsort(-np.abs(corrected), kind="stable")[:k]).astype(np.int32)
    return indices, corrected[indices]
    # <<<


def feed_back(
    gradient: np.ndarray, residual: np.ndarray, send: Callable[[np.ndarray], np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """15.7  Error feedback: what a message leaves out is added to the next gradient (Seide et al., 2014).

    Args:
        gradient: of this step; not modified.
        residual: what has been left out so far, of the same shape and dtype; not modified.
        send: sends an array, and returns what the message stands for, a new array: a part of the elements, signs times
            a number, a product of two thin matrices. Call it once. It does not modify what it gets.

    Returns:
        What the message stood for, and the new residual. Nothing is lost: both together are what was to be sent, the
        gradient plus the old residual, which is rounded once.
    """
    # >>> 15.7
    corrected = gradient + residual
    sent = send(corrected)
    return sent, corrected - sent
    # <<<


def stochastic_round(values: np.ndarray, unit: float | np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """15.8  Round to whole multiples of ``unit``, up or down by chance, so that the mean is right.

    2.25 units become 3 with probability 1/4, else 2: then rounding adds noise, but no bias (QSGD, Alistarh et al.,
    2017). A value that is a multiple already never changes.

    Args:
        values: float32 or float64, any shape; not modified. No value is above 2^40 units.
        unit: a power of two above 0, or an array of them that broadcasts with the values.
        rng: draw one uniform number for each value, ``rng.random(values.shape)``, and nothing else. A value goes up
            where its number is less than its probability of going up. (Other rules are as good, but give other bits.)

    Returns:
        Multiples of unit, of the values' shape and dtype.
    """
    # >>> 15.8
    multiples = values / unit
    low = np.floor(multiples)
    up = rng.random(values.shape) < multiples - low
    return ((low + up) * unit).astype(values.dtype)
    # <<<


def one_bit(corrected: np.ndarray) -> tuple[np.ndarray, float]:
    """15.9  A bit for each element, its sign, and one number for all: the mean magnitude.

    Args:
        corrected: one-dimensional, float32 or float64; not modified.

    Returns:
        Which elements are below zero, bool; and the mean of all magnitudes, a Python float, summed in float64; 0.0
        where there are no elements. The message stands for +scale and -scale.
    """
    # >>> 15.9
    scale = np.abs(corrected).mean(dtype=np.float64) if corrected.size else 0.0
    return corrected < 0, float(scale)
    # <<<


def orthonormal(matrix: np.ndarray) -> np.ndarray:
    """Given: a matrix (m, r) with orthonormal columns whose first j columns span what those of ``matrix`` do."""
    return np.linalg.qr(matrix)[0]


def power_sgd_step(matrix: np.ndarray, q: np.ndarray, all_reduce: Sum) -> tuple[np.ndarray, np.ndarray]:
    """15.10  The sum of all ranks' matrices, of low rank: a step of PowerSGD (Vogels et al., 2019, arXiv 1905.13727).

    P = M Q, made orthonormal, and Q = M^T P, where M is the sum of the matrices of all ranks: then P Q^T is near M, and
    nearer if Q was good. M itself is never sent. Both products are linear in M, so thin matrices are all that has to be
    summed over the ranks: r (m + n) numbers instead of m n, however many ranks there are.

    Args:
        matrix: this rank's, (m, n), float32 or float64; not modified.
        q: the last step's, the same on all ranks, (n, r) of the same dtype; not modified.
        all_reduce: replaces an array, in place, by its sum over all ranks. Every rank calls it twice.

    Returns:
        P (m, r) with orthonormal columns, and Q (n, r), the same on all ranks. New arrays of that dtype.
    """
    # >>> 15.10
    p = matrix @ q  # (m, r)
    all_reduce(p)
    p = orthonormal(p)
    q = matrix.T @ p  # (n, r)
    all_reduce(q)
    return p, q
    # <<<


# 15.11  Local steps
#
# Each worker takes H steps on its own, from the same weights ("start") and with an optimizer of its own. Then the mean
# of what they have learned becomes a step of an outer optimizer (DiLoCo, Douillard et al., 2023). The *pseudo-gradient*
# is such that a step of SGD with rate 1 leads from the start to the mean of the workers' weights.


def outer_step(
    data: np.ndarray, pseudo_gradient: np.ndarray, momentum_buffer: np.ndarray | None, lr: float, momentum: float
) -> None:
    """A step of SGD with Nesterov momentum, in place, as ``torch.optim.SGD(nesterov=True)``.

    The buffer b becomes momentum b + g, and the weights change by -lr (g + momentum b), with the new b.

    Args:
        data: the weights at the start of the round; they become those of the next.
        pseudo_gradient: g, not modified.
        momentum_buffer: b, 0 before the first step; None where momentum is 0.
        lr: 0.7 in DiLoCo. momentum: 0.9 there; with 0 this is plain SGD.
    """
    # >>> 15.11
    step = pseudo_gradient
    if momentum:
        momentum_buffer *= momentum
        momentum_buffer += pseudo_gradient
        step = pseudo_gradient + momentum * momentum_buffer
    data -= lr * step
    # <<<


def due(step: int, local_steps: int, fragments: int) -> list[int]:
    """The fragments of the model that are joined after a step, ascending (Streaming DiLoCo, Douillard et al., 2025).

    Each fragment is joined every H = ``local_steps`` steps, and they take turns, so that messages are spread over the
    round: fragment f is due when step + floor(f H / fragments) is a multiple of H.

    Args:
        step: the number of steps that have ended, so counted from 1.
        fragments: from 1 to H.
    """
    # >>> 15.11
    return [f for f in range(fragments) if (step + f * local_steps // fragments) % local_steps == 0]
    # <<<


def join(
    start: np.ndarray, workers: Sequence[np.ndarray], momentum_buffer: np.ndarray | None, lr: float, momentum: float
) -> None:
    """End a round: from the workers' weights compute those with which all of them go on. Everything in place.

    Args:
        start: the weights that all workers had at the start of the round; becomes those of the next.
        workers: the weights of each of them now. Each becomes the next start, in an array of its own.
        momentum_buffer, lr, momentum: of ``outer_step``.
    """
    # >>> 15.11
    pseudo_gradient = start - np.mean(workers, axis=0)
    outer_step(start, pseudo_gradient, momentum_buffer, lr, momentum)
    for weights in workers:
        weights[...] = start
    # <<<


# 15.12  Worksheet: bytes of each method, and slow links
#
# The bytes that one of N ranks sends in a step for a matrix of gradients (m, n) of float32. A ring all-reduce of M
# bytes sends 2 (N - 1) / N M. Messages that cannot be added on their way are all-gathered: each rank's message goes
# around the whole ring, so each rank sends as much as N - 1 messages.


def all_reduce_bytes(m: int, n: int, ranks: int) -> float:
    """The gradients as they are."""
    # >>> 15.12
    return 2 * (ranks - 1) / ranks * 4 * m * n
    # <<<


def int8_bytes(m: int, n: int, ranks: int) -> int:
    """A byte for each element, and a scale in float32, in an all-gather: sums of bytes do not fit into bytes."""
    # >>> 15.12
    return (ranks - 1) * (m * n + 4)
    # <<<


def one_bit_bytes(m: int, n: int, ranks: int) -> int:
    """Eight signs in each byte, the last one filled up, and a scale in float32, in an all-gather."""
    # >>> 15.12
    return (ranks - 1) * (ceil(m * n / 8) + 4)
    # <<<


def top_k_bytes(m: int, n: int, ranks: int, share: float) -> int:
    """ceil(share m n) elements, each with an index in int32, in an all-gather."""
    # >>> 15.12
    return (ranks - 1) * ceil(share * m * n) * (4 + 4)
    # <<<


def power_sgd_bytes(m: int, n: int, ranks: int, rank: int) -> float:
    """P and Q of that rank in two all-reduces; the gradients as they are if P and Q are no fewer numbers."""
    # >>> 15.12
    return 2 * (ranks - 1) / ranks * 4 * min(m * n, rank * (m + n))
    # <<<


def most_ranks(share: float) -> int:
    """The most ranks with which top-k sends less than the all-reduce. ``share`` is 1 / 2^i and divides the elements."""
    # >>> 15.12
    return ceil(1 / share) - 1
    # <<<


def fewest_local_steps(compute: float, parameters: int, ranks: int, bandwidth: float, busy: float) -> int:
    """The fewest local steps for which workers compute at least a share ``busy`` of the time.

    Args:
        compute: seconds of a step. After every H steps follows one ring all-reduce of float32, while nobody computes.
        bandwidth: bytes/s that a worker sends.
        busy: above 0 and below 1.
    """
    # >>> 15.12
    wait = 2 * (ranks - 1) / ranks * 4 * parameters / bandwidth
    return max(1, ceil(busy * wait / ((1 - busy) * compute)))
    # <<<


def first_q(name: str, n: int, r: int) -> np.ndarray:
    """Given: the Q of a parameter's first step: the same on all ranks.  (n, r)"""
    return np.random.default_rng(sum(name.encode())).standard_normal((n, r))


class LowRank:
    """15.13  Debugging: PowerSGD with error feedback and a warm start, in buckets.

    In each step ``compress`` is called for each bucket of gradients. Nothing that a message leaves out may be lost, and
    each message should be nearer than the one before, because it starts from the last step's Q. The author has tested
    it for many steps, with one bucket of one matrix, from a good first Q, and saw no error. With PyTorch's DDP, which
    rebuilds its buckets after the first step, the residuals are lost. (PyTorch's own hook had that error, and the other
    one here too: pull requests 49418 and 50283.) Find both.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.residuals: dict = {}
        self.qs: dict[str, np.ndarray] = {}

    def compress(self, number: int, bucket: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The gradients that the message of one bucket stands for, by name.

        Args:
            number: the bucket's number, from 0 in each step.
            bucket: the gradients in it, by name; matrices of float64, not modified. In the next step a parameter may be
                in another bucket, at another place; its name and shape stay.
        """
        # >>> 15.13
        found = {}
        for name, gradient in bucket.items():
            corrected = gradient + self.residuals.get(name, 0.0)
            if name not in self.qs:
                self.qs[name] = first_q(name, gradient.shape[1], self.rank)
            p = orthonormal(corrected @ self.qs[name])
            self.qs[name] = corrected.T @ p
            found[name] = p @ self.qs[name].T
            self.residuals[name] = corrected - found[name]
        return found
        # === given to the learner
        # flat = np.concatenate([gradient.reshape(-1) for gradient in bucket.values()])
        # residual = self.residuals.get(number)
        # if residual is None or residual.size != flat.size:
        #     residual = np.zeros(flat.size)
        # corrected, sent, found, start = flat + residual, np.empty(flat.size), {}, 0
        # for name, gradient in bucket.items():
        #     place = slice(start, start + gradient.size)
        #     matrix = corrected[place].reshape(gradient.shape)
        #     if name not in self.qs:
        #         self.qs[name] = np.empty((gradient.shape[1], self.rank))
        #     self.qs[name][:] = first_q(name, gradient.shape[1], self.rank)
        #     p = orthonormal(matrix @ self.qs[name])
        #     self.qs[name][:] = matrix.T @ p
        #     found[name] = p @ self.qs[name].T
        #     sent[place] = found[name].reshape(-1)
        #     start += gradient.size
        # self.residuals[number] = corrected - sent
        # return found
        # <<<
