"""Recursive halving for ``halvings`` steps, recursive doubling on what is left, and the halvings back."""

from math import log2

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_reduce, sendrecv


def fast_all_reduce(flat: np.ndarray, alpha: float, beta: float, group: ProcessGroup) -> None:
    steps = int(log2(group.size))
    if 2**steps != group.size or group.size == 1:
        return all_reduce(flat, ReduceOp.SUM, group)

    def seconds(halvings: int) -> float:
        whole = flat.nbytes * beta
        exchanges = (steps - halvings) * (alpha + whole / 2**halvings)
        return exchanges + 2 * sum(alpha + whole / 2**step for step in range(1, halvings + 1))

    halvings = min(range(steps), key=seconds)
    mine, given = flat, []
    for step in range(halvings):
        partner = group.rank ^ (1 << step)
        low, high = mine[: mine.size // 2], mine[mine.size // 2 :]
        kept, sent = (high, low) if group.rank > partner else (low, high)
        arrived = np.empty_like(kept)
        sendrecv(sent, partner, arrived, partner, group)
        kept += arrived
        given.append((partner, kept, sent))
        mine = kept
    for step in range(halvings, steps):
        partner = group.rank ^ (1 << step)
        arrived = np.empty_like(mine)
        sendrecv(mine, partner, arrived, partner, group)
        mine += arrived
    for partner, kept, sent in reversed(given):
        sendrecv(kept, partner, sent, partner, group)
