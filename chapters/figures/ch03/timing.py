"""Measure how long a call takes on real ranks, and fit alpha and beta to it."""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np

import minidist as md


def measure(cluster, ranks: int, sizes: Sequence[int], repeats: int, call: Callable) -> np.ndarray:
    """Return the seconds of ``call(array, group)`` on the first ranks, for arrays of each of the sizes in bytes.

    On each rank the best of several averages over five calls counts; the result is that of the slowest rank.
    """
    return np.max(cluster.run(seconds_of, ranks, sizes, repeats, call)[:ranks], axis=0)


def seconds_of(world, ranks: int, sizes: Sequence[int], repeats: int, call: Callable) -> np.ndarray:
    group = world.new_group(range(ranks))
    best = np.full(len(sizes), np.inf)
    for _ in range(repeats if group is not None else 0):
        for i, nbytes in enumerate(sizes):
            x = np.zeros(nbytes // 4, np.float32)
            md.barrier(group)
            began = perf_counter()
            for _ in range(5):
                call(x, group)
            best[i] = min(best[i], (perf_counter() - began) / 5)
    return best


def fit(sizes: Sequence[int], seconds: np.ndarray) -> np.ndarray:
    """Return alpha and beta, by least squares on the relative error, as in chapter 2."""
    design = np.stack([1 / seconds, sizes / seconds], axis=1)  # (sizes, 2)
    return np.linalg.lstsq(design, np.ones(len(sizes)), rcond=None)[0]
