"""One MLP on real ranks, forward and backward, one call at a time: what each rank holds after each of them.

The calls are those of ``ColumnParallelLinear`` and ``RowParallelLinear`` (parallel/tensor.py). Each one gets a leaf, so
that its backward runs alone too and what arrives there can be copied.
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
from minidist.parallel.tools.mappings import (
    SEQUENCE,
    copy_parameter_to_group,
    reduce_from_group,
    reduce_scatter_in_group,
)
from minidist.show.demos.shared.runs import WarmRanks
from minidist.show.demos.tensor_parallel import bug
from minidist.show.demos.tensor_parallel.numbers import Numbers

SUMS = np.float64  # in which the ranks' terms are added
RANKS = 2  # ranks that the matrices are cut for, whatever the number that train: the picture stays readable


@dataclass(frozen=True)
class Held:
    """What one rank held, as matrices; t is T, or with sequence parallelism T/N. Hidden units are those of its heads.

    Args:
        first: the first of its tokens.
        x_hat, x, y: (t, C); gain: (C,); full: (T, C), what f returned.
        a: (C, hidden); z: (T, hidden); b: (hidden, C); partial: (T, C), its terms of y.
        d_y, d_x: (t, C); d_full: (T, C), what came back through g; d_partial: (T, C), its terms of d_x.
        d_z, d_a, d_b: like z, a, b; own_gain: (C,), the gradient of gain from its tokens; d_gain: (C,), the one used.
        sent: bytes that it had sent after f, g, g's backward, f's backward, and at the end.
    """

    first: int
    x_hat: np.ndarray
    gain: np.ndarray
    x: np.ndarray
    full: np.ndarray
    a: np.ndarray
    z: np.ndarray
    b: np.ndarray
    partial: np.ndarray
    y: np.ndarray
    d_y: np.ndarray
    d_full: np.ndarray
    d_z: np.ndarray
    d_b: np.ndarray
    d_partial: np.ndarray
    d_a: np.ndarray
    d_x: np.ndarray
    own_gain: np.ndarray
    d_gain: np.ndarray
    sent: tuple[int, ...]


def split(warm: WarmRanks, numbers: Numbers, sequence: bool, broken: str = "") -> list[Held]:
    """What each of RANKS ranks held.

    Args:
        sequence: whether the tokens are split outside f and g.
        broken: "g" to skip g's sum, "gain" to skip that of the gain's gradients.
    """
    with warm(RANKS) as cluster:
        return cluster.run(_on_rank, numbers, sequence, broken, timeout=60)


def whole(warm: WarmRanks, numbers: Numbers) -> Held:
    """What one process holds."""
    with warm(1) as cluster:
        return cluster.run(_on_rank, numbers, False, "", timeout=60)[0]


def matches(ranks: Sequence[Held], one: Held) -> bool:
    """Whether the ranks' results and gradients, joined, have the bits of one process."""
    joined = {
        "y": [_tokens(ranks, "y")],
        "d_x": [_tokens(ranks, "d_x")],
        "d_a": [np.concatenate([held.d_a for held in ranks], axis=1)],
        "d_b": [np.concatenate([held.d_b for held in ranks])],
        "d_gain": [held.d_gain for held in ranks],
    }
    found = {name: [array.tobytes() for array in arrays] for name, arrays in joined.items()}
    return all(bits == getattr(one, name).tobytes() for name, each in found.items() for bits in each)


def _tokens(ranks: Sequence[Held], name: str) -> np.ndarray:
    """The tokens of all ranks, or rank 0's if every rank has all."""
    arrays = [getattr(held, name) for held in ranks]
    return np.concatenate(arrays) if len(arrays[0]) < len(ranks[0].full) else arrays[0]


def _on_rank(world: ProcessGroup, numbers: Numbers, sequence: bool, broken: str) -> Held:
    mine, sent = heads_of(world.rank, world.size, len(numbers.a)), []
    heads = slice(mine.start, mine.stop)
    count = len(numbers.x_hat) // world.size if sequence else len(numbers.x_hat)
    first = world.rank * count if sequence else 0

    def leaf(array) -> Tensor:
        return Tensor(np.ascontiguousarray(array), requires_grad=True)

    def count_bytes() -> None:
        sent.append(int(world.traffic.sent[:, 0].sum()))

    gain, a, b = leaf(numbers.gain), leaf(numbers.a[heads]), leaf(numbers.b[heads])
    x_hat, target = (array[None, first : first + count] for array in (numbers.x_hat, numbers.target))  # (1, t, C)

    x = Tensor(x_hat) * _gain(gain, world, sequence, broken)  # (1, t, C)
    x_leaf = leaf(x.data)
    full = enter_heads(x_leaf, world, sequence, SUMS)  # f: (1, T, C)
    full_leaf = leaf(full.data)
    count_bytes()
    z = functional.gelu(functional.linear(functional.copy_to_heads(full_leaf, len(mine)), a))  # (H/N, 1, T, UNITS)
    z_leaf = leaf(z.data)
    partial = functional.reduce_from_heads(functional.linear(z_leaf, b, partial=True), SUMS)  # (1, T, C)
    partial_leaf = leaf(partial.data)
    with bug.without_g() if broken == "g" else nullcontext():
        y = _leave_heads(partial_leaf, world, sequence)  # g: (1, t, C)
    count_bytes()

    y.backward(y.data - target)
    count_bytes()
    partial.backward(partial_leaf.grad)
    z.backward(z_leaf.grad.astype(np.float32))
    full.backward(full_leaf.grad)
    count_bytes()
    x.backward(x_leaf.grad.astype(np.float32))
    count_bytes()

    d_x = x_leaf.grad
    arrays = {
        "x_hat": x_hat[0],
        "gain": gain.data,
        "x": x.data[0],
        "full": full.data[0],
        "a": _beside(a.data),
        "z": _beside(z.data[:, 0]),
        "b": _below(b.data),
        "partial": partial.data[0],
        "y": y.data[0],
        "d_y": (y.data - target)[0],
        "d_full": partial_leaf.grad[0],
        "d_z": _beside(z_leaf.grad[:, 0]),
        "d_b": _below(b.grad),
        "d_partial": full_leaf.grad[0],
        "d_a": _beside(a.grad),
        "d_x": d_x[0],
        "own_gain": (d_x[0] * x_hat[0]).sum(0),
        "d_gain": gain.grad,
    }
    arrays = {name: np.ascontiguousarray(to_host(array)) for name, array in arrays.items()}
    return Held(first=first, sent=tuple(sent), **arrays)


def _gain(gain: Tensor, group: ProcessGroup, sequence: bool, broken: str) -> Tensor:
    """The gain as each rank applies it to its tokens: where they are split, its gradients have to be summed."""
    if broken == "gain":
        return bug.gain_without_sum(gain, group)
    return copy_parameter_to_group(gain, group, SUMS) if sequence else gain


def _leave_heads(x: Tensor, group: ProcessGroup, sequence: bool) -> Tensor:
    if sequence:
        return reduce_scatter_in_group(x, group, SEQUENCE, SUMS, np.float32)
    return reduce_from_group(x, group, SUMS, np.float32)


def _beside(heads: np.ndarray) -> np.ndarray:
    """(H, rows, columns) -> (rows, H columns)."""
    return np.concatenate(list(heads), axis=1)


def _below(heads: np.ndarray) -> np.ndarray:
    """(H, rows, columns) -> (H rows, columns)."""
    return np.concatenate(list(heads))
