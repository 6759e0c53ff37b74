"""Every algorithm of every collective, by the name that ``algorithm=`` takes: the textbook's, and those for nodes."""

from minidist.comm import algorithms
from minidist.comm.algorithms import GATHER, REDUCE, SCATTER
from minidist.comm.nodes import double_tree, two_level

HIERARCHICAL = "hierarchical"  # takes a group with as many ranks on every node

BROADCAST = algorithms.BROADCAST | {
    "double_tree": double_tree.broadcast_double_tree,
    HIERARCHICAL: two_level.broadcast_hierarchical,
}
REDUCE_SCATTER = algorithms.REDUCE_SCATTER | {HIERARCHICAL: two_level.reduce_scatter_hierarchical}
ALL_GATHER = algorithms.ALL_GATHER | {HIERARCHICAL: two_level.all_gather_hierarchical}
ALL_REDUCE = algorithms.ALL_REDUCE | {
    "double_tree": double_tree.all_reduce_double_tree,
    HIERARCHICAL: two_level.all_reduce_hierarchical,
}
ALL_TO_ALL = algorithms.ALL_TO_ALL | {HIERARCHICAL: two_level.all_to_all_hierarchical}

BY_COLLECTIVE = {
    "broadcast": BROADCAST,
    "reduce": REDUCE,
    "reduce_scatter_tensor": REDUCE_SCATTER,
    "all_gather_into_tensor": ALL_GATHER,
    "all_reduce": ALL_REDUCE,
    "all_to_all_single": ALL_TO_ALL,
    "scatter": SCATTER,
    "gather": GATHER,
}
