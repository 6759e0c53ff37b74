"""Small messages that join one value of each rank, and flat arrays that hold several arrays one after another.

The gradient norm joins one value of each rank (nn/optim/clip.py). A flat array is sent as one message, or held as one
buffer.
"""

import pickle
from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_gather_into_tensor, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import sendrecv


def global_max(value, group: ProcessGroup):
    """Return the largest of the ranks' values, in float64: of a number, or of each element of an array."""
    return _joined(np.array(value, np.float64), ReduceOp.MAX, group)


def global_sum(value, group: ProcessGroup):
    """Return the sum of the ranks' integers, exact below 2^63: of a number, or of each element of an array."""
    return _joined(np.array(value, np.int64), ReduceOp.SUM, group)


def _joined(copy: np.ndarray, op: ReduceOp, group: ProcessGroup):
    all_reduce(copy.reshape(-1), op, group)
    return copy if copy.ndim else copy.item()


def first_text(text: str, group: ProcessGroup) -> str:
    """Return the text of the lowest rank that has one; "" if none has. Every rank gets the same."""
    return next(filter(None, all_gather_object(text, group)), "")


def all_gather_object(value, group: ProcessGroup) -> list:
    """Return the values of all ranks, in rank order. They must be picklable. (``torch.distributed`` has it too.)"""
    content = np.frombuffer(pickle.dumps(value), np.uint8)
    lengths = np.empty(group.size, np.int64)
    all_gather_into_tensor(lengths, np.array([len(content)]), group, algorithm="direct")
    mine = np.zeros(lengths.max(), np.uint8)
    mine[: len(content)] = content
    everyone = np.empty((group.size, len(mine)), np.uint8)
    all_gather_into_tensor(everyone, mine, group, algorithm="direct")
    return [pickle.loads(row[:length].data) for row, length in zip(everyone, lengths, strict=True)]


def sendrecv_object(value, to: int, source: int, group: ProcessGroup) -> Any:
    """Send a picklable value to rank ``to``, and return the value that rank ``source`` sends here."""
    if to == source == group.rank:
        return value
    content, length = np.frombuffer(pickle.dumps(value), np.uint8), np.empty(1, np.int64)
    sendrecv(np.array([len(content)]), to, length, source, group)
    incoming = np.empty(length[0], np.uint8)
    sendrecv(content, to, incoming, source, group)
    return pickle.loads(incoming.data)


def views_of(flat, shapes: Sequence[tuple[int, ...]]) -> list:
    """Return consecutive views of a flat array, in these shapes."""
    found, start = [], 0
    for shape in shapes:
        found.append(flat[start : start + prod(shape)].reshape(shape))
        start += prod(shape)
    return found


def flattened(arrays: Sequence, dtype=xp.float32):
    """Return the arrays' elements, one after another, in a new flat array; an empty one of ``dtype`` for no arrays."""
    return xp.concatenate([xp.empty(0, dtype), *(array.reshape(-1) for array in arrays)])


def unflatten(flat, arrays: Sequence) -> None:
    """Write the elements of ``flat`` into the arrays, one after another."""
    for array, view in zip(arrays, views_of(flat, [array.shape for array in arrays]), strict=True):
        array[...] = view
