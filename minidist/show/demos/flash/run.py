"""Attention on a memory that counts accesses and records what it holds whenever a tile or a row is done.

The bug: if a tile raises the maximum, the sums of the tiles before it are not rescaled.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np

from minidist.backend import xp
from minidist.nn.attention import slow_memory
from minidist.nn.attention.online_softmax import OnlineSoftmax
from minidist.nn.attention.slow_memory import ALL, SlowMemory
from minidist.nn.attention.tiled import tiles
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.trainer import train_rank

WIDTH = 8  # width of a head, d
MOST_TILES = 6  # most tiles of queries: rows of the grid
KINDS = ("causal", "no mask", "standard")
INNERMOST = 7  # arrays that the tiled form has in the fast memory while it merges a tile: Q, O, sums, maxima, K, V, S


@dataclass(frozen=True)
class Moment:
    """State after a tile was merged, or after rows were written to the slow memory.

    Args:
        stage: None if a tile was merged; otherwise the number of the slow array that was written to, from 0.
        queries: rows that are worked on.
        keys: keys of the merged tile; None if rows were written.
        sizes: elements of each array in the fast memory, in the order of their arrival.
        reads, writes: elements read and written so far.
        largest: each row's largest score so far, (rows,); None if rows were written.
        mean: each row's weighted mean of the values so far, (rows, d); None if rows were written.
    """

    stage: int | None
    queries: slice
    keys: slice | None
    sizes: tuple[int, ...]
    reads: int
    writes: int
    largest: np.ndarray | None = None
    mean: np.ndarray | None = None


class WatchedMemory(SlowMemory):
    """Memory that counts accesses and keeps its moments, with a trace event for each."""

    def __init__(self, fast: int) -> None:
        super().__init__(fast)
        self.held: list[np.ndarray] = []  # arrays in the fast memory
        self.rows: list[slice] = []  # rows of the slow array that each was loaded from
        self.stored: list[np.ndarray] = []  # slow arrays that were written to
        self.moments: list[Moment] = []
        self.log: list[Event] = []
        self.time = time.perf_counter_ns()

    @contextmanager
    def hold(self, *shape: int) -> Iterator[np.ndarray]:
        with super().hold(*shape) as values:
            self.held.append(values)
            self.rows.append(ALL)
            yield values
            if len(self.held) == INNERMOST:
                o, sums, largest = self.held[1:4]
                self._keep(None, self.rows[0], self.rows[4], largest.copy(), o / sums[:, None])
            self.held.pop()
            self.rows.pop()

    @contextmanager
    def load(self, array: np.ndarray, rows: slice = ALL) -> Iterator[np.ndarray]:
        with super().load(array, rows) as values:
            self.rows[-1] = rows
            yield values

    def store(self, array: np.ndarray, rows: slice, values: np.ndarray) -> None:
        super().store(array, rows, values)
        if not any(array is other for other in self.stored):
            self.stored.append(array)
        self._keep(next(stage for stage, other in enumerate(self.stored) if array is other), rows, None)

    def _keep(self, stage: int | None, queries: slice, keys: slice | None, *state: np.ndarray) -> None:
        sizes = tuple(values.size for values in self.held)
        self.moments.append(Moment(stage, queries, keys, sizes, self.reads, self.writes, *state))
        begin, self.time = self.time, time.perf_counter_ns()
        what = f"rows {tokens(queries)}" + ("" if keys is None else f", keys {tokens(keys)}")
        self.log.append(Event(("merge " if stage is None else "store ") + what, "compute", begin, self.time))


@dataclass(frozen=True)
class Attention:
    """One run of attention.

    Args:
        kind: one of KINDS.
        length: N, number of queries and of keys.
        tile: B, number of queries and of keys in a tile.
        fast: elements that the fast memory has room for.
        output: (N, d)
        right: the output by plain NumPy, (N, d).
        log: events for Perfetto.
    """

    kind: str
    length: int
    tile: int
    fast: int
    moments: list[Moment]
    output: np.ndarray
    right: np.ndarray
    log: list[Event]

    @property
    def traffic(self) -> tuple[int, int]:
        """Elements that the whole run read and wrote."""
        return self.moments[-1].reads, self.moments[-1].writes

    @property
    def error(self) -> np.ndarray:
        """Absolute error of each element of the output."""
        return np.abs(self.output - self.right)


def tokens(rows: slice) -> str:
    """Return the first and the last row of a tile, counted from 0, as text."""
    return f"{rows.start}" if rows.stop - rows.start == 1 else f"{rows.start}–{rows.stop - 1}"


def formula(kind: str, length: int, tile: int) -> int:
    """Elements read and written (nn/attention/slow_memory.py). With a causal mask, only visited tiles count."""
    if kind == "standard":
        return 4 * length**2 + 4 * length * WIDTH
    parts = tiles(length, tile)
    keys = sum(part.stop if kind == "causal" else length for part in parts)  # keys that all tiles of queries see
    return 2 * length * WIDTH + 2 * WIDTH * keys + length


def run_of(kind: str, length: int, seed: int, merge: Callable = slow_memory.merge) -> Attention:
    """Run attention on random inputs; ``merge`` is the step of the online softmax.

    Raises:
        RuntimeError: if the counters do not match the formula.
    """
    q, k, v = np.random.default_rng(seed).standard_normal((3, length, WIDTH))
    tile = -(-length // MOST_TILES)
    if kind == "standard":
        memory = WatchedMemory(length * WIDTH + length + WIDTH)
        output = slow_memory.standard_attention(memory, q, k, v)
    else:
        memory = WatchedMemory(4 * tile * WIDTH + tile**2 + 2 * tile)
        with patch.object(slow_memory, "merge", merge):
            output, _ = slow_memory.tiled_attention(memory, q, k, v, tile, kind == "causal")
    if memory.reads + memory.writes != formula(kind, length, tile):
        raise RuntimeError(f"{kind} attention does not read and write what its formula says: this is a bug in minidist")
    right = _attention(q, k, v, kind == "causal")
    return Attention(kind, length, tile, memory.fast, memory.moments, output, right, memory.log)


def _attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    scores = q @ k.T / np.sqrt(WIDTH)
    if causal:
        scores[np.triu_indices(len(q), 1)] = -np.inf
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ v / weights.sum(axis=1, keepdims=True)


BUG = "if a tile raises the maximum, the sums of the tiles before it are not rescaled"
MODEL = TrainConfig(
    layers=2, heads=2, width=32, context=32, global_batch=2, micro_batch=2, steps=2, attention="tiled", attention_tile=8
)


def merge_without_rescaling(o, sums, largest, s, values) -> None:
    """Merge a tile as ``slow_memory.merge`` does, but leave the earlier sums relative to a smaller maximum."""
    np.maximum(largest, s.max(axis=1), out=largest)
    s[...] = np.exp(s - largest[:, None])
    sums += s.sum(axis=1)
    o += s @ values


def train_without_rescaling(world, config, layout, options):
    """Train with the bug in the model's attention."""

    def merge(self: OnlineSoftmax, exponent, weight, value) -> None:
        exponent = exponent.astype(xp.int32)
        self.exponent = xp.maximum(self.exponent, exponent)
        for total, term in ((self.weight, weight), (self.value, value)):
            total.add(xp.ldexp(term.astype(xp.float64), exponent - self.exponent))

    with patch.object(OnlineSoftmax, "merge", merge):
        return train_rank(world, config, layout, options)
