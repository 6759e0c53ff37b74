"""One value over all ranks of a group: what the gradient norm and the overflow check join (nn/clip.py)."""

import numpy as np

from minidist.comm.collectives import ReduceOp, all_gather_into_tensor, all_reduce
from minidist.comm.group import ProcessGroup

TEXT_BYTES = 512  # of an error message


def global_max(value: float, group: ProcessGroup) -> float:
    """The largest of the ranks' values."""
    return float(_reduced(np.array([value], np.float64), ReduceOp.MAX, group))


def global_sum(value: int, group: ProcessGroup) -> int:
    """The sum of the ranks' integers, exact below 2^63."""
    return int(_reduced(np.array([value], np.int64), ReduceOp.SUM, group))


def first_text(text: str, group: ProcessGroup) -> str:
    """The text of the lowest rank that has one: every rank gets the same. Cut after ``TEXT_BYTES``."""
    mine = np.zeros(TEXT_BYTES, np.uint8)
    content = np.frombuffer(text.encode()[:TEXT_BYTES], np.uint8)
    mine[: len(content)] = content
    everyone = np.zeros((group.size, TEXT_BYTES), np.uint8)
    all_gather_into_tensor(everyone, mine, group)
    texts = [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in everyone]
    return next(filter(None, texts), "")


def _reduced(value: np.ndarray, op: ReduceOp, group: ProcessGroup):
    all_reduce(value, op, group)
    return value[0]
