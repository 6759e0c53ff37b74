"""A model so small that a whole parameter server fits into one process: which byte follows which.

Its weights are a table of logits, one row for each byte of the text. The loss is convex, and a thousand updates take
less than a second, so that methods can be compared over several seeds, on the clock of a seeded order of arrivals.
"""

from collections.abc import Sequence
from functools import cache

import numpy as np

from minidist.nn.data import load_corpus
from minidist.parallel.loosened.arrivals import may_begin, seeded_order

BATCH = 64  # pairs of bytes in a gradient


@cache
def text() -> tuple[np.ndarray, np.ndarray]:
    """Return the default text as numbers from 0, and the share of each pair of bytes in it.  (bytes,), (V, V)"""
    used, numbers = np.unique(load_corpus(None, 1).training, return_inverse=True)
    pairs = np.zeros((len(used), len(used)))
    np.add.at(pairs, (numbers[:-1], numbers[1:]), 1)
    return numbers, pairs / pairs.sum()


def loss(weights: np.ndarray) -> float:
    """Return the loss on the whole text, in nats per byte."""
    _, pairs = text()
    shifted = weights - weights.max(axis=1, keepdims=True)
    return float((pairs * (np.log(np.exp(shifted).sum(axis=1))[:, None] - shifted)).sum())


def gradient(weights: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return the gradient (V, V) of the loss on pairs drawn at random."""
    numbers, _ = text()
    places = rng.integers(0, len(numbers) - 1, BATCH)
    before, after = numbers[places], numbers[places + 1]
    logits = weights[before]  # (BATCH, V)
    found = np.exp(logits - logits.max(axis=1, keepdims=True))
    found /= found.sum(axis=1, keepdims=True)
    found[np.arange(BATCH), after] -= 1
    total = np.zeros_like(weights)
    np.add.at(total, before, found / BATCH)
    return total


def train(
    seconds: Sequence[float], updates: int, staleness: float, rate: float, seed: int, every: int = 20
) -> list[tuple[float, float]]:
    """Train; return the loss after each ``every`` gradients, and the second at which the last of them came.

    With staleness 0 the server applies the sum of all workers' gradients at once; otherwise each one as it comes.

    Args:
        seconds: that each worker takes for a step.
        updates: gradients to take in all.
        rate: of each gradient.
    """
    workers, size = len(seconds), len(text()[1])
    weights, rng = np.zeros((size, size)), np.random.default_rng(seed)
    held, clocks, waiting = [weights] * workers, [0] * workers, set()
    pending, curve = [], []
    order = seeded_order(seconds, updates, staleness, seed)[:updates]
    for number, arrival in enumerate(order):
        pending.append(gradient(held[arrival.worker], rng))
        if staleness or len(pending) == workers:
            weights, pending = weights - rate * sum(pending), []
        clocks[arrival.worker] += 1
        waiting.add(arrival.worker)
        for worker in [one for one in waiting if may_begin(clocks, one, staleness)]:
            waiting.remove(worker)
            held[worker] = weights
        if number % every == every - 1:
            curve.append((arrival.seconds, loss(weights)))
    return curve


def settled(curve: Sequence[tuple[float, float]]) -> float:
    """Return the mean loss of the last fifth of a run."""
    return float(np.mean([loss for _, loss in curve[-max(1, len(curve) // 5) :]]))
