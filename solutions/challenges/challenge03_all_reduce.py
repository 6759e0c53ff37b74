"""Challenge 3: the fastest all-reduce of 8 ranks, on any network.

This file begins as the library's answer. Change whatever you like, use whatever NumPy and minidist offer, and see what
it brings: ``minidist challenge 3``.

A message of n bytes takes alpha + beta * n seconds; a rank can send one and receive another at the same time. Your
all-reduce runs on real ranks, its messages are replayed on networks that differ in alpha and beta, and the geometric
mean of the times counts, over small and large arrays. Messages may overlap (isend, irecv); collectives in the
background (async_op) may not, because a replay of them would differ from run to run.
"""

import numpy as np

from minidist import ProcessGroup, ReduceOp, all_reduce, irecv, isend, recv, send, sendrecv


def fast_all_reduce(flat: np.ndarray, alpha: float, beta: float, group: ProcessGroup) -> None:
    """Overwrite ``flat`` on every rank with the sum of all ranks' arrays.

    Args:
        flat: (elements,) int64 of any size, the same size on all ranks. Sums wrap around, so their order is free.
        alpha: seconds per message.
        beta: seconds per byte.
        group: any number of ranks; 8 count.
    """
    all_reduce(flat, ReduceOp.SUM, group)  # the library chooses by size alone, whatever the network
