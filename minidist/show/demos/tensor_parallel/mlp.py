"""An MLP, y = GELU(x A) B, on two real ranks: what each rank holds after each call of the forward pass.

The calls are those of ``ColumnParallelLinear`` and ``RowParallelLinear`` (parallel/tensor.py). The numbers are small
integers, so that a class can follow a sum in its head. All hidden values are at least 6 away from zero, where float32
has GELU(h) = h or 0: every result is an integer.
"""

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np

from minidist.backend import to_host
from minidist.comm.group import ProcessGroup
from minidist.nn import functional
from minidist.nn.tensor import Tensor
from minidist.parallel.tensor import enter_heads, heads_of
from minidist.parallel.tools.mappings import SEQUENCE, reduce_from_group, reduce_scatter_in_group
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.demos.tensor_parallel import bug

TOKENS, WIDTH, UNITS = 4, 3, 2  # T, C, and the hidden units of one head
RANKS = 2  # ranks that share the matrices, however many train: the picture stays readable
SUMS = np.float64  # dtype in which the ranks' terms are added
FAR = 6  # distance from zero at which GELU is exact


@dataclass(frozen=True)
class Numbers:
    """Input and weights of an MLP with a head for each rank, float32: x (T, C), a (H, C, UNITS), b (H, UNITS, C)."""

    x: np.ndarray
    a: np.ndarray
    b: np.ndarray


@dataclass(frozen=True)
class Held:
    """Matrices that one rank held; t is T, or with sequence parallelism T/N. Hidden units are those of its heads.

    Args:
        x, y: (t, C)
        a: (C, hidden); z: (T, hidden); b: (hidden, C); partial: (T, C), the rank's terms of y.
        sent: bytes that the rank sent.
    """

    x: np.ndarray
    a: np.ndarray
    z: np.ndarray
    b: np.ndarray
    partial: np.ndarray
    y: np.ndarray
    sent: int


def numbers_of(seed: int) -> Numbers:
    """Draw until GELU is exact, does something, and neither term of the first sum is zero."""
    random = np.random.default_rng(seed)
    while True:
        x = random.integers(-1, 4, (TOKENS, WIDTH))
        columns = random.integers(-6, 7, (1000, WIDTH))
        hidden = x @ columns.T  # (T, 1000)
        columns = columns[(np.abs(hidden) >= FAR).all(0) & (hidden > 0).any(0) & (hidden < 0).any(0)]
        if len(columns) < RANKS * UNITS:
            continue
        a = columns[: RANKS * UNITS].reshape(RANKS, UNITS, WIDTH).swapaxes(1, 2)
        b = random.integers(-1, 2, (RANKS, UNITS, WIDTH))
        if (np.maximum(x @ a, 0) @ b)[:, 0, 0].all():
            return Numbers(*(array.astype(np.float32) for array in (x, a, b)))


def split(warm: WarmRanks, numbers: Numbers, sequence: bool, broken: bool = False) -> list[Held]:
    """Return what each of RANKS ranks held; ``sequence`` splits tokens outside f and g, ``broken`` skips g's sum."""
    with warm(RANKS) as cluster:
        return cluster.run(_on_rank, numbers, sequence, broken, timeout=60)


def whole(warm: WarmRanks, numbers: Numbers) -> Held:
    """Run the MLP in one process and return what it held."""
    with warm(1) as cluster:
        return cluster.run(_on_rank, numbers, False, False, timeout=60)[0]


def matches(ranks: Sequence[Held], one: Held) -> bool:
    """Return whether the ranks' hidden values and results, joined, have the bits of one process."""
    hidden = np.concatenate([held.z for held in ranks], axis=1)
    is_split = len(ranks[0].y) < len(one.y)
    results = [np.concatenate([held.y for held in ranks])] if is_split else [held.y for held in ranks]
    return hidden.tobytes() == one.z.tobytes() and all(y.tobytes() == one.y.tobytes() for y in results)


def _on_rank(world: ProcessGroup, numbers: Numbers, sequence: bool, broken: bool) -> Held:
    mine = heads_of(world.rank, world.size, len(numbers.a))
    a, b = (weights[mine.start : mine.stop] for weights in (numbers.a, numbers.b))
    x = np.split(numbers.x, world.size)[world.rank] if sequence else numbers.x  # (t, C)
    full = enter_heads(Tensor(x[None]), world, sequence, SUMS)  # f: (1, T, C)
    z = functional.gelu(functional.linear(functional.copy_to_heads(full, len(mine)), Tensor(a)))  # (H/N, 1, T, UNITS)
    partial = functional.reduce_from_heads(functional.linear(z, Tensor(b), partial=True), SUMS)  # (1, T, C)
    with bug.without_g() if broken else nullcontext():
        if sequence:
            y = reduce_scatter_in_group(partial, world, SEQUENCE, SUMS, np.float32)  # g: (1, t, C)
        else:
            y = reduce_from_group(partial, world, SUMS, np.float32)
    z, partial, y = (to_host(result.data) for result in (z, partial, y))
    sent = int(world.traffic.sent[:, 0].sum())
    return Held(
        x, np.concatenate(a, axis=1), np.concatenate(z[:, 0], axis=1), np.concatenate(b), partial[0], y[0], sent
    )
