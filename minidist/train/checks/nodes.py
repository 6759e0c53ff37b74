"""Whether the groups of a layout fit its nodes, before any rank starts."""

import numpy as np

from minidist.comm.nodes.placement import HIERARCHICAL, check_node_size, node_counts
from minidist.parallel.expert import expert_groups


def check_nodes(layout) -> None:
    """Raises ValueError for nodes that a Layout's ranks do not fill, or on which its algorithm cannot run."""
    if layout.node_size < 0:
        raise ValueError(f"node_size={layout.node_size}: how many ranks share a node; 0 for all of them")
    if layout.node_size:
        check_node_size(layout.node_size, layout.world_size)
    if layout.algorithm != HIERARCHICAL:
        return
    uneven = uneven_group(layout, layout.node_size)
    if uneven is not None:
        sizes = [n for n in range(1, layout.world_size + 1) if layout.world_size % n == 0]
        fitting = [str(n) for n in sizes if uneven_group(layout, n) is None]
        counts = ", ".join(map(str, node_counts(tuple(rank // layout.node_size for rank in uneven))))
        raise ValueError(
            f"algorithm={HIERARCHICAL} needs as many ranks of a group on every node, but with node_size="
            f"{layout.node_size} the ranks {', '.join(map(str, uneven))}, which sum gradients, are {counts} on theirs: "
            f"choose node_size from {', '.join(fitting)}, or another algorithm, such as auto"
        )


def uneven_group(layout, node_size: int) -> list[int] | None:
    """The first group that sums gradients and does not have as many ranks on every node; None if all have."""
    if not node_size:
        return None
    for group in gradient_groups(layout):
        if len(set(node_counts(tuple(rank // node_size for rank in group)))) > 1:
            return group
    return None


def gradient_groups(layout) -> list[list[int]]:
    """The groups of world ranks whose collectives take the layout's algorithm; replicas of shards take "auto"."""
    mesh = np.arange(layout.world_size).reshape(layout.pp, layout.dp, layout.cp, layout.tp)
    replicas = mesh.transpose(0, 3, 1, 2).reshape(-1, layout.shard or layout.replicas).tolist()
    return replicas + (expert_groups(mesh, layout.ep)[1] if layout.ep > 1 else [])
