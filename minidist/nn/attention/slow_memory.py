"""Memory traffic of attention: its two forms on a memory that counts reads and writes.

A GPU has a large slow memory (HBM) and in each multiprocessor a small fast one (SRAM). Attention is limited by the
traffic between them, not by arithmetic. Here arrays lie in the slow memory; a computation may use only what it has
loaded into a fast memory of ``fast`` elements. For N queries and keys of width d, without a causal mask, in elements:

    standard    4 N^2 + 4 N d                        scores are written, read, written as softmax, and read again
    tiled       2 N d + 2 N d ceil(N / B) + N        keys and values are read once for each tile of B queries

(Dao et al., "FlashAttention", 2022, section 3.2, gives the orders of growth: N d + N^2, and N^2 d^2 / M.)
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from minidist.nn.attention.tiled import tiles

ALL = slice(None)


class SlowMemory:
    """Slow memory that counts its traffic with a fast memory of ``fast`` elements.

    Attributes:
        reads, writes: numbers of elements that were loaded from the slow memory, and stored to it.
        most: the most elements that the fast memory has held at once.
    """

    def __init__(self, fast: int) -> None:
        self.fast, self.used, self.most = fast, 0, 0
        self.reads = self.writes = 0

    @contextmanager
    def hold(self, *shape: int) -> Iterator[np.ndarray]:
        """Allocate zeros in the fast memory, and free them at the end of the ``with`` block.

        Raises:
            MemoryError: if they do not fit.
        """
        values = np.zeros(shape)
        self.used += values.size
        if self.used > self.fast:
            raise MemoryError(f"this needs {self.used} elements of fast memory at once, but there are {self.fast}")
        self.most = max(self.most, self.used)
        try:
            yield values
        finally:
            self.used -= values.size

    @contextmanager
    def load(self, array: np.ndarray, rows: slice = ALL) -> Iterator[np.ndarray]:
        """Copy some rows into the fast memory, and free them at the end of the ``with`` block."""
        with self.hold(*array[rows].shape) as values:
            values[...] = array[rows]
            self.reads += values.size
            yield values

    def store(self, array: np.ndarray, rows: slice, values: np.ndarray) -> None:
        """Write rows back to the slow memory."""
        array[rows] = values
        self.writes += values.size


def standard_attention(memory: SlowMemory, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Compute softmax(q k^T / sqrt(d)) v in three passes, with all scores in the slow memory: (N, d) each -> (N, d).

    The fast memory must hold all keys, or all values, and a row of scores.
    """
    length, width = q.shape
    scores, weights, output = np.empty((length, length)), np.empty((length, length)), np.empty((length, width))
    with memory.load(k) as keys:
        for row in tiles(length, 1):
            with memory.load(q, row) as query, memory.hold(1, length) as s:
                s[...] = query @ keys.T / np.sqrt(width)
                memory.store(scores, row, s)
    for row in tiles(length, 1):
        with memory.load(scores, row) as s:
            s[...] = np.exp(s - s.max())
            s /= s.sum()
            memory.store(weights, row, s)
    with memory.load(v) as values:
        for row in tiles(length, 1):
            with memory.load(weights, row) as p, memory.hold(1, width) as o:
                o[...] = p @ values
                memory.store(output, row, o)
    return output


def tiled_attention(
    memory: SlowMemory, q: np.ndarray, k: np.ndarray, v: np.ndarray, tile: int, causal: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """Compute attention tile by tile, with an online softmax; scores never leave the fast memory.

    Args:
        tile: number of queries, and of keys, in the fast memory at a time.
        causal: a query attends to itself and the keys before it; tiles of later keys are not loaded.

    Returns:
        The output (N, d), and for backward the logarithm of each row's sum of exponentials (N,).
    """
    length, width = q.shape
    output, log_sums = np.empty((length, width)), np.empty(length)
    for rows in tiles(length, tile):
        count = rows.stop - rows.start
        with (
            memory.load(q, rows) as queries,
            memory.hold(count, width) as o,
            memory.hold(count) as sums,
            memory.hold(count) as largest,
        ):
            largest[...] = -np.inf
            for columns in tiles(rows.stop if causal else length, tile):
                with (
                    memory.load(k, columns) as keys,
                    memory.load(v, columns) as values,
                    memory.hold(count, columns.stop - columns.start) as s,
                ):
                    s[...] = queries @ keys.T / np.sqrt(width)
                    if causal and columns == rows:
                        s[np.triu_indices(count, 1)] = -np.inf
                    merge(o, sums, largest, s, values)
            memory.store(output, rows, o / sums[:, None])
            memory.store(log_sums, rows, largest + np.log(sums))
    return output, log_sums


def merge(o: np.ndarray, sums: np.ndarray, largest: np.ndarray, s: np.ndarray, values: np.ndarray) -> None:
    """Add a tile to the sums of some rows, in place and in the fast memory: the step of an online softmax.

    Args:
        o: sums of weighted values, (rows, d), relative to the largest score so far.
        sums, largest: each row's sum of weights, also relative to the largest score so far, and that score, (rows,).
        s: scores of the tile, (rows, columns); they become weights.
        values: (columns, d)
    """
    before = largest.copy()
    np.maximum(largest, s.max(axis=1), out=largest)
    s[...] = np.exp(s - largest[:, None])
    rescale = np.exp(before - largest)  # the sums were relative to a smaller maximum
    sums[...] = rescale * sums + s.sum(axis=1)
    o[...] = rescale[:, None] * o + s @ values


def largest_tile(fast: int, width: int) -> int:
    """Return the largest tile that fits a fast memory: queries, outputs, keys, values, scores, two numbers a row.

    Raises:
        MemoryError: if not even one query and one key fit.
    """
    tile = 0
    while 4 * (tile + 1) * width + (tile + 1) ** 2 + 2 * (tile + 1) <= fast:
        tile += 1
    if tile == 0:
        raise MemoryError(f"one query and one key of width {width} need {4 * width + 3} elements, but there are {fast}")
    return tile
