"""Challenge 6: an MLP on several ranks that sends the fewest bytes.

This file begins as the library's answer: tensor parallelism with sequence parallelism. Change whatever you like, use
whatever NumPy and minidist offer, and see what it brings: ``minidist challenge 6``.

N ranks compute y = relu(x a) b. Each begins with its rows of x and ends with the same rows of y. What a rank holds of
the weights is your choice, at most 1/N of their elements; then the ranks may send each other whatever they like. What
counts are the bytes that the busiest rank sends: the geometric mean over several shapes. In some of them the
activations are larger than the weights, or the hidden layer is narrower than the others.
"""

import numpy as np

from minidist import (
    ProcessGroup,
    all_gather_into_tensor,
    all_reduce,
    all_to_all_single,
    irecv,
    isend,
    recv,
    reduce_scatter_tensor,
    send,
    sendrecv,
)


def place_weights(a: np.ndarray, b: np.ndarray, tokens: int, rank: int, ranks: int) -> list[np.ndarray]:
    """Return the part of the weights that one rank holds. Called before training, and in another process than ``mlp``.

    Args:
        a: (width, hidden) int64.
        b: (hidden, width) int64.
        tokens: the rows of x, on all ranks together.
        rank, ranks: this rank, and N, which divides tokens, width and hidden.

    Returns:
        New arrays, with at most (a.size + b.size) / N elements together.
    """
    mine = np.array_split(np.arange(a.shape[1]), ranks)[rank]  # columns of a, and the same rows of b
    return [a[:, mine], b[mine]]


def mlp(
    x: np.ndarray, placed: list[np.ndarray], tokens: int, width: int, hidden: int, group: ProcessGroup
) -> np.ndarray:
    """This rank's rows of relu(x a) b.

    Args:
        x: this rank's rows, (tokens / N, width) int64. Sums and products wrap around.
        placed: what ``place_weights`` returned for this rank.
        tokens, width, hidden: of the whole problem.
        group: the N ranks.

    Returns:
        A new array of the shape of ``x``.
    """
    rows = np.empty((tokens, width), np.int64)
    all_gather_into_tensor(rows, x, group)
    partial = np.maximum(rows @ placed[0], 0) @ placed[1]  # (tokens, width): a sum over the ranks is missing
    y = np.empty_like(x)
    reduce_scatter_tensor(y, partial, group=group)
    return y
