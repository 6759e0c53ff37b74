"""Challenge 9: a placement of ranks that sends the least between nodes.

This file begins as the library's answer. Change whatever you like, and see what it brings: ``minidist challenge 9``.

A node holds G ranks, and the last node may have free places. What ranks of one node send each other is free; what
crosses nodes counts, in megabytes: the geometric mean over several jobs. A job is known by its traffic alone. In some,
ranks are numbered as in a mesh of pipeline, data and tensor parallelism; in others, without any order.
"""

import numpy as np


def place_ranks(sent: np.ndarray, per_node: int) -> list[int]:
    """Return the rank that runs at each place.

    Args:
        sent: (N, N) int64, megabytes from each rank to each.
        per_node: G; the first G places are in the first node, and so on.

    Returns:
        The ranks in the order of places: each rank once.
    """
    return list(range(len(sent)))
