"""One number over all ranks of a group: what the gradient norm and the overflow check join (nn/clip.py)."""

import numpy as np

from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup


def global_max(value: float, group: ProcessGroup) -> float:
    """The largest of the ranks' values."""
    return float(_reduced(np.array([value], np.float64), ReduceOp.MAX, group))


def global_sum(value: int, group: ProcessGroup) -> int:
    """The sum of the ranks' integers, exact below 2^63."""
    return int(_reduced(np.array([value], np.int64), ReduceOp.SUM, group))


def _reduced(value: np.ndarray, op: ReduceOp, group: ProcessGroup):
    all_reduce(value, op, group)
    return value[0]
