"""One value of each rank of a group: what the gradient norm and the overflow check join (nn/clip.py), and texts."""

import numpy as np

from minidist.comm.collectives import ReduceOp, all_gather_into_tensor, all_reduce
from minidist.comm.group import ProcessGroup


def global_max(value: float, group: ProcessGroup) -> float:
    """The largest of the ranks' values."""
    return float(_reduced(np.array([value], np.float64), ReduceOp.MAX, group))


def global_sum(value: int, group: ProcessGroup) -> int:
    """The sum of the ranks' integers, exact below 2^63."""
    return int(_reduced(np.array([value], np.int64), ReduceOp.SUM, group))


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


def _reduced(value: np.ndarray, op: ReduceOp, group: ProcessGroup):
    all_reduce(value, op, group)
    return value[0]
