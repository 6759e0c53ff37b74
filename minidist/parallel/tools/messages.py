"""What ranks tell each other in one small message, and several arrays side by side in one flat array.

One value of each rank is what the gradient norm joins (nn/optim/clip.py). A flat array is sent as one message, or held
as one buffer.
"""

from collections.abc import Sequence
from math import prod

import numpy as np

from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_gather_into_tensor, all_reduce
from minidist.comm.group import ProcessGroup


def global_max(value: float, group: ProcessGroup) -> float:
    """The largest of the ranks' values."""
    return float(global_maxima(np.array([value], np.float64), group)[0])


def global_sum(value: int, group: ProcessGroup) -> int:
    """The sum of the ranks' integers, exact below 2^63."""
    return int(global_sums(np.array([value], np.int64), group)[0])


def global_maxima(values: np.ndarray, group: ProcessGroup) -> np.ndarray:
    """The largest of the ranks' values, element by element; a new array."""
    return _all_reduced(values, ReduceOp.MAX, group)


def global_sums(values: np.ndarray, group: ProcessGroup) -> np.ndarray:
    """The sums of the ranks' integers, element by element, exact below 2^63; a new array."""
    return _all_reduced(values, ReduceOp.SUM, group)


def first_text(text: str, group: ProcessGroup) -> str:
    """The text of the lowest rank that has one; "" if none has. Every rank gets the same."""
    return next(filter(None, texts_of_all(text, group)), "")


def texts_of_all(text: str, group: ProcessGroup) -> list[str]:
    """The texts of all ranks, in their order. (``torch.distributed.all_gather_object``, of one type.)"""
    content = np.frombuffer(text.encode(), np.uint8)
    lengths = np.empty(group.size, np.int64)
    all_gather_into_tensor(lengths, np.array([len(content)]), group)
    mine = np.zeros(lengths.max(), np.uint8)
    mine[: len(content)] = content
    everyone = np.empty((group.size, len(mine)), np.uint8)
    all_gather_into_tensor(everyone, mine, group)
    return [row[:length].tobytes().decode() for row, length in zip(everyone, lengths, strict=True)]


def _all_reduced(values: np.ndarray, op: ReduceOp, group: ProcessGroup) -> np.ndarray:
    values = values.copy()
    all_reduce(values, op, group)
    return values


def views_of(flat, shapes: Sequence[tuple[int, ...]]) -> list:
    """Parts of a flat array, one after another, in these shapes."""
    found, start = [], 0
    for shape in shapes:
        found.append(flat[start : start + prod(shape)].reshape(shape))
        start += prod(shape)
    return found


def flattened(arrays: Sequence, dtype=xp.float32):
    """The arrays' elements, one after another, in a new array; of this dtype if there are no arrays."""
    return xp.concatenate([xp.empty(0, dtype), *(array.reshape(-1) for array in arrays)])


def unflatten(flat, arrays: Sequence) -> None:
    """Write the elements of ``flat`` into the arrays, one after another."""
    for array, view in zip(arrays, views_of(flat, [array.shape for array in arrays]), strict=True):
        array[...] = view
