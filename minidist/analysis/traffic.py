"""What went from each rank to each, sorted by the axes of a mesh and by nodes."""

from collections.abc import Sequence

import numpy as np


def along(sent: np.ndarray, shape: Sequence[int], names: Sequence[str] = ("pp", "dp", "tp")) -> dict[str, np.ndarray]:
    """Return by axis the part of the traffic between ranks that differ along that axis alone.

    Args:
        sent: (N, N), from each rank to each.
        shape: of the mesh; the last axis changes fastest.
        names: of the axes.

    Returns:
        (N, N) for each name.
    """
    places = np.stack(np.unravel_index(np.arange(len(sent)), tuple(shape)), axis=1)  # (N, axes)
    differs = places[:, None] != places[None]  # (N, N, axes)
    return {name: sent * (differs[..., i] & (differs.sum(axis=-1) == 1)) for i, name in enumerate(names)}


def inside_and_between(sent: np.ndarray, ranks_per_node: int) -> tuple[int, int]:
    """How much all ranks together sent to ranks of their own node, and to ranks of other nodes.

    Args:
        sent: (N, N), from each rank to each.
        ranks_per_node: nodes are filled in the order of ranks.
    """
    node = np.arange(len(sent)) // ranks_per_node
    inside = node[:, None] == node
    return int(sent[inside].sum()), int(sent[~inside].sum())


def renumbered(sent: np.ndarray, shape: Sequence[int], order: Sequence[int]) -> np.ndarray:
    """The traffic, (N, N), if the ranks of the mesh were numbered with its axes in another order.

    Args:
        sent: (N, N), from each rank to each.
        shape: of the mesh in which they are numbered now.
        order: its axes, the slowest first.
    """
    ranks = np.arange(len(sent)).reshape(shape).transpose(order).ravel()  # the rank at each place
    return sent[np.ix_(ranks, ranks)]
