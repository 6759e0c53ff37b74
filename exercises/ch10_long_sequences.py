"""Chapter 10: long sequences: tiled attention and context parallelism.

**Attention.** For one head, T queries q, keys k and values v, each (T, D): the scores are q k^T / sqrt(D), (T, T);
softmax turns each row into weights; the output is weights times v. With the causal mask query i sees keys 0 to i.

**Tiles.** Queries and keys are cut into tiles of ``tile`` consecutive tokens; the last one may be shorter. Tiled
attention computes one tile of queries with one tile of keys at a time. It leaves out those whose keys all come later
than the queries.

**Context parallelism.** N ranks each have T/N tokens of every sequence, in every layer. Each rank's queries need the
keys and values of other ranks. The functions of 10.4 to 10.6 have the names and arguments of minidist's own, so the
library can train with them:

    minidist verify --impl exercises cp=2 cp=3,dp=2 cp=2,cp_kind=zigzag --context 48 --steps 5

You may use the imports below, NumPy, and what you write here. ``minidist check 10`` grades this file,
``minidist check --hint 10.3`` gives a hint.
"""

from collections.abc import Callable
from math import ceil

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_reduce, all_to_all_single, irecv, isend
from minidist.nn.attention.slow_memory import SlowMemory

# 10.1  Worksheet: the wall, and what tiles save
#
# Elements are numbers in memory, whatever their size. Slow memory is the GPU's large one, fast memory the small one in
# which it computes. ``length`` is T, ``width`` is D, both at least 1; ``tile`` is at least 1 and may exceed ``length``.


def scores_bytes(batch: int, heads: int, length: int, itemsize: int) -> int:
    """The bytes of the scores of one layer: ``batch`` samples, numbers of ``itemsize`` bytes."""
    raise NotImplementedError("task 10.1")


def causal_tiles(length: int, tile: int) -> int:
    """The number of pairs, a tile of queries with a tile of keys, that causal tiled attention computes."""
    raise NotImplementedError("task 10.1")


def standard_accesses(length: int, width: int) -> int:
    """The elements that standard attention of one head reads from slow memory and writes to it, without a mask.

    It makes three passes: it reads q and k and writes the scores; it reads the scores and writes the weights; it reads
    the weights and v and writes the output. Each array is read or written once in a pass.
    """
    raise NotImplementedError("task 10.1")


def tiled_accesses(length: int, width: int, tile: int) -> int:
    """The elements that causal tiled attention reads from slow memory and writes to it.

    For each tile of queries it reads the queries once, reads each tile of keys and of values that they need once, and
    writes the output and one number for each query.
    """
    raise NotImplementedError("task 10.1")


def tiled_forward(memory: SlowMemory, q: np.ndarray, k: np.ndarray, v: np.ndarray, tile: int) -> np.ndarray:
    """10.2  Causal attention of one head, tile by tile, on a memory that counts.

    q, k, v and the output are in the slow memory. Compute only with what you have loaded:

        with memory.load(array, rows) as values:    a copy of array[rows], rows a slice, in the fast memory
        with memory.hold(n, m) as values:           zeros of this shape in the fast memory
        memory.store(array, rows, values)           writes array[rows] in the slow memory

    What ``load`` and ``hold`` give is freed at the end of the ``with`` block. If more is held than fits, MemoryError is
    raised.

    Args:
        memory: its fast memory has room for 4 tile D + tile^2 + 2 tile elements, and no more: queries, output, keys,
            values, scores, and two numbers for each query.
        q, k, v: (T, D) float64; not modified.
        tile: queries, and keys, in a tile.

    Returns:
        The output, (T, D) float64.

    Cost: as ``tiled_accesses`` counts, without the one number for each query, which only backward needs.
    """
    raise NotImplementedError("task 10.2")


# 10.3  The online softmax
#
# A *partial* is what some of the keys contribute to the attention of R queries: a tuple of
#
#     exponent    (R, 1) int64, an integer M for each query, at least as large as its scores
#     weight      (R, 1) float64, the sum of 2^(score - M) over these keys
#     value       (R, D) float64, the sum of 2^(score - M) v over these keys
#
# Scores are in base 2: they have been multiplied by log2(e). So moving a partial from M to another integer multiplies
# by a power of two, which float64 does exactly (``np.ldexp``), unless the result is below 2^-1022.

Partial = tuple[np.ndarray, np.ndarray, np.ndarray]


def merge(first: Partial, second: Partial) -> Partial:
    """10.3  The partial of two sets of keys together, from the partials of both.

    Args:
        first, second: of the same queries; not modified. Their exponents may differ by thousands.

    Returns:
        Three new arrays. Each exponent is the larger of the two, even where a sum is 0. Each sum is rounded once, by
        the addition: nothing else may round, overflow or warn.
    """
    raise NotImplementedError("task 10.3")


# The ring
#
# Rank r sends to rank r + 1, and rank N - 1 to rank 0. ``keys_values`` is one array with the keys and the values of
# a rank's tokens. ``visit(rank, keys_values)`` computes this rank's queries with the keys and values of ``rank``: call
# it once for each rank, your own first, then those of rank r - 1, r - 2 and so on, as they arrive.


def ring_forward(keys_values: np.ndarray, group: ProcessGroup, visit: Callable[[int, np.ndarray], None]) -> None:
    """10.4  Ring attention, forward: bring every rank's keys and values past every rank's queries.

    Args:
        keys_values: this rank's; not modified. The same shape and dtype on every rank.
        group: the N ranks.
        visit: see above. The array that it gets must not change until it returns.

    Cost: N - 1 messages of the size of ``keys_values`` from each rank. Both the send of what you have and the receive
    of what comes next start before you visit: so messages travel while this rank computes.
    """
    raise NotImplementedError("task 10.4")


def sequence_chunks_of(rank: int, ranks: int, chunks: int, kind: str) -> list[int]:
    """10.5  The chunks of a sequence that a rank has.

    The sequence is cut into equal chunks, 0 to ``chunks`` - 1. For "ring" and "ulysses" each rank has consecutive
    chunks, rank 0 the first ones. With the causal mask late queries have more keys to look at, so the last rank has the
    most to do. For "zigzag" and "all-gather" the sequence is cut into 2 N parts of equally many chunks; a rank has an
    early part and a late one, chosen so that every rank has the same work, and rank 0 has the very first chunk.

    Args:
        rank, ranks: this rank, and N.
        chunks: a multiple of N; for "zigzag" and "all-gather", of 2 N.
        kind: one of these four.

    Returns:
        A list of integers, ascending.

    Raises:
        ValueError: if ``chunks`` is not such a multiple.
    """
    raise NotImplementedError("task 10.5")


def ring_backward(keys_values: np.ndarray, group: ProcessGroup, visit: Callable[[int, np.ndarray], object]) -> object:
    """10.6  Ring attention, backward: keys and values go round again, and their gradients follow them home.

    Here ``visit(rank, keys_values)`` returns what this rank's queries add to the gradients of those keys and values. It
    is a new object, a sum whose terms may be added in any order:

        total.merge(other)     adds another such sum to it
        total.arrays()         an array that holds it: a message
        total.of(array)        such a sum from a message that has arrived

    Args:
        keys_values, group: as for ``ring_forward``; at least 2 ranks.
        visit: the ranks in the same order as in ``ring_forward``.

    Returns:
        The gradients of this rank's own keys and values, summed over all ranks: one of those objects.

    Cost: N - 1 messages of keys and values, started before each visit, and N of gradients from each rank. A gradient
    leaves as soon as this rank has added its part.
    """
    raise NotImplementedError("task 10.6")


# 10.7  Worksheet: what each kind sends, and when a ring is hidden
#
# One layer, forward, one sample. ``length`` is T, of which each of the N ranks has T/N tokens. Queries and the output
# have ``width`` numbers a token over all heads; keys have ``kv_width`` and values as many. With grouped-query attention
# (GQA) several heads share their keys and values, so ``kv_width`` is smaller than ``width``.


def passing_bytes(ranks: int, length: int, kv_width: int, itemsize: int) -> float:
    """The bytes that a rank sends for "ring", "zigzag" and "all-gather", with ``itemsize`` bytes per number.

    (The all-gather takes a ring too.)
    """
    raise NotImplementedError("task 10.7")


def ulysses_bytes(ranks: int, length: int, width: int, kv_width: int, itemsize: int) -> float:
    """The bytes that a rank sends for "ulysses": an all-to-all of queries, keys and values, and one of the output.

    In an all-to-all a rank keeps 1/N of what it has.
    """
    raise NotImplementedError("task 10.7")


def ring_efficiency(ranks: int) -> float:
    """The share of its time in which a rank of a contiguous causal ring computes, on average over the ranks.

    The ring has N steps. In each one all ranks wait for the slowest. A rank's step with its own keys, half of whose
    scores are masked afterwards, takes as long as a step with earlier keys; a step with keys that all come later takes
    no time. Sending takes no time.
    """
    raise NotImplementedError("task 10.7")


def least_tokens(flops: float, bandwidth: float, width: int, kv_width: int, itemsize: int) -> float:
    """The fewest tokens of a rank, T/N, with which the ring is hidden behind the computation.

    In one step of the ring a rank multiplies t queries with t keys, and the weights with t values, without a mask, at
    ``flops`` operations a second (a multiplication and an addition are two), and sends keys and values of t tokens at
    ``bandwidth`` bytes a second.
    """
    raise NotImplementedError("task 10.7")


def heads_from_tokens(x: np.ndarray, group: ProcessGroup) -> np.ndarray:
    """10.8  Ulysses: from some tokens of all heads to all tokens of some heads, with one all-to-all.

    Args:
        x: (H, T/N, D), this rank's tokens, rank 0 having the first ones; not modified. N divides H.
        group: the N ranks.

    Returns:
        A new array (H/N, T, D): all tokens of this rank's heads, rank 0 having the first ones.

    Cost: one ``all_to_all_single``.
    """
    raise NotImplementedError("task 10.8")


def train_on_chunks(
    sequences: np.ndarray, steps: int, lr: float, group: ProcessGroup
) -> tuple[list[float], np.ndarray]:
    """10.9  Debugging: a model that predicts the next number, trained with context parallelism.

    The prediction for the number after x at position p is a x + b p + c. Each rank has consecutive positions of every
    sequence. On one rank all is well. On more, all ranks agree with each other and the loss falls, but it is a
    different loss, and the trained model is different too. Find out why, and fix it: any number of ranks has to match
    one process.

    Args:
        sequences: (samples, T + 1) float64, the same on every rank; not modified. T numbers to predict from, T to be
            predicted. The ranks need not divide T, but each has at least one token.
        steps, lr: of gradient descent.
        group: the ranks.

    Returns:
        The mean squared error before each step, over all samples and positions, and the trained (a, b, c), float64.
    """
    x = np.array_split(sequences, group.size, axis=1)[group.rank]
    x, y = x[:, :-1], x[:, 1:]
    positions = np.arange(x.shape[1]) / (sequences.shape[1] - 1)
    count = x.size
    model = np.zeros(3)
    losses = []
    features = np.stack([x, np.broadcast_to(positions, x.shape), np.ones(x.shape)])  # (3, samples, local tokens)
    for _ in range(steps):
        errors = np.tensordot(model, features, 1) - y
        sums = np.array([np.sum(errors**2), *(2 * np.sum(features * errors, axis=(1, 2)))]) / count
        all_reduce(sums, ReduceOp.SUM, group)
        sums /= group.size
        losses.append(float(sums[0]))
        model -= lr * sums[1:]
    return losses, model
