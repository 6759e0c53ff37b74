"""Attention with a head on each of two real ranks, from small integers: only the softmax makes fractions."""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from minidist.backend import to_host
from minidist.comm.group import ProcessGroup
from minidist.nn import functional
from minidist.nn.attention.plain import causal_attention
from minidist.nn.tensor import Tensor
from minidist.parallel.tensor import enter_heads, heads_of
from minidist.parallel.tools.mappings import reduce_from_group
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.demos.tensor_parallel import bug
from minidist.show.demos.tensor_parallel.mlp import RANKS, SUMS

TOKENS, WIDTH, HEAD = 3, 3, 2  # T, C and D
CLOSE = 1e-5  # the shown weights, by formula, times V may differ so much from the run's output: some float32 roundings


@dataclass(frozen=True)
class Numbers:
    """Input and weights of attention with H heads, float32.

    Args:
        x: (T, C)
        qkv: (H, C, 3 D), for each head the columns of its queries, keys and values.
        out: (H, D, C), for each head the rows of its output projection.
    """

    x: np.ndarray
    qkv: np.ndarray
    out: np.ndarray


@dataclass(frozen=True)
class Held:
    """Arrays that one rank held for its H/N heads: one head on each of two ranks, or all of them in one process.

    Args:
        x, y: (T, C); partial: (T, C), the rank's terms of y.
        q, k, v, o: (H/N, T, D); weights: (H/N, T, T), the softmax's.
        sent: bytes that the rank sent.
    """

    x: np.ndarray
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    weights: np.ndarray
    o: np.ndarray
    partial: np.ndarray
    y: np.ndarray
    sent: int


def numbers_of(seed: int) -> Numbers:
    """Draw until each rank has a positive term of the first token's sum, and the heads weigh the tokens differently.

    The first token attends to itself alone, so its terms, which are shown, are integers.
    """
    random = np.random.default_rng((seed, RANKS))
    while True:
        x, out = random.integers(0, 3, (TOKENS, WIDTH)), random.integers(0, 2, (RANKS, HEAD, WIDTH))
        qk, v = random.integers(-1, 2, (RANKS, WIDTH, 2 * HEAD)), random.integers(0, 2, (RANKS, WIDTH, HEAD))
        q, k = np.split(x @ qk, 2, axis=2)
        partial = weights_of(q, k) @ (x @ v) @ out  # (H, T, C)
        terms, last = partial[:, 0, 0], weights_of(q, k)[:, -1]
        if (terms > 0).all() and np.ptp(last, axis=1).all() and (last[0] != last[1]).all():
            return Numbers(*(array.astype(np.float32) for array in (x, np.concatenate([qk, v], axis=2), out)))


def weights_of(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Softmax of the scores of each query with the keys up to its own: (H, T, D) twice -> (H, T, T)."""
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def split(warm: WarmRanks, numbers: Numbers, broken: bool = False) -> list[Held]:
    """Run attention on RANKS ranks and return what each of them held; ``broken`` skips g's sum."""
    with warm(RANKS) as cluster:
        return cluster.run(_on_rank, numbers, broken, timeout=60)


def whole(warm: WarmRanks, numbers: Numbers) -> Held:
    """Run attention in one process and return what it held."""
    with warm(1) as cluster:
        return cluster.run(_on_rank, numbers, False, timeout=60)[0]


def matches(ranks: Sequence[Held], one: Held) -> bool:
    """Return whether every rank's result, and the ranks' heads joined, have the bits of one process."""
    heads = np.concatenate([held.o for held in ranks])
    return heads.tobytes() == one.o.tobytes() and all(held.y.tobytes() == one.y.tobytes() for held in ranks)


def _on_rank(world: ProcessGroup, numbers: Numbers, broken: bool) -> Held:
    mine = heads_of(world.rank, world.size, len(numbers.qkv))
    heads = slice(mine.start, mine.stop)
    x = Tensor(numbers.x[None])  # (1, T, C)
    full = enter_heads(x, world, False, SUMS)  # f
    qkv = functional.linear(functional.copy_to_heads(full, len(mine)), Tensor(numbers.qkv[heads]))  # (H/N, 1, T, 3 D)
    o = causal_attention(qkv, None, 0.0)  # (H/N, 1, T, D)
    partial = functional.reduce_from_heads(functional.linear(o, Tensor(numbers.out[heads]), partial=True), SUMS)
    with bug.without_g() if broken else nullcontext():
        y = reduce_from_group(partial, world, SUMS, np.float32)  # g: (1, T, C)

    q, k, v = np.split(to_host(qkv.data)[:, 0], 3, axis=2)
    weights, output = weights_of(q, k), to_host(o.data)[:, 0]
    if not np.allclose(weights @ v, output, rtol=CLOSE, atol=CLOSE):
        raise RuntimeError("attention is not softmax(QKᵀ/√d) V: this is a bug in minidist")
    arrays = (numbers.x, q, k, v, weights, output, to_host(partial.data)[0], to_host(y.data)[0])
    return Held(*map(np.ascontiguousarray, arrays), sent=int(world.traffic.sent[:, 0].sum()))
