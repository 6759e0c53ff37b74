"""The traffic of a mixture of experts against that of tensor parallelism: arithmetic alone.

All numbers are for one rank and one layer, forward and backward together, in elements. n is the number of tokens in
this rank's micro-batch, C the width, k the experts of a token; experts are spread evenly and chosen evenly. The size of
a node divides the number of ranks, or is larger.

    all-to-all         4 k n C (N-1)/N      rows go and come back, and so do their gradients
    all-reduce         4 n C (N-1)/N        by a ring: an MLP's output in forward, its input's gradient in backward

So for the same micro-batch, inside a node, the mixture's k rows for each token cost k times as much. But t
tensor-parallel ranks work on one micro-batch together, where each expert-parallel rank has its own. For the same batch
on as many GPUs a tensor-parallel rank works on t times as many tokens, and the mixture sends less as long as k is below
t. Nodes matter too. Tensor parallelism stays inside a node; a mixture with more ranks than a node has leaves it. The
links inside a node and those between nodes work at the same time, so the slower of the two counts.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Links:
    """Bandwidths of one rank inside and between nodes, in elements per second, and the number of ranks in a node."""

    inside: float
    between: float
    node_size: int


def all_to_all_elements(tokens: int, width: int, k: float, ranks: int) -> float:
    """Elements that a rank sends to its ``ranks - 1`` peers for one layer with experts."""
    return 4 * k * tokens * width * (ranks - 1) / ranks


def all_reduce_elements(tokens: int, width: int, ranks: int) -> float:
    """Elements that a rank sends for one tensor-parallel MLP."""
    return 4 * tokens * width * (ranks - 1) / ranks


def between_nodes(tokens: int, width: int, k: float, ranks: int, node_size: int) -> float:
    """Elements of a rank's all-to-all that leave the node."""
    return 4 * k * tokens * width * max(0, ranks - node_size) / ranks


def all_to_all_seconds(tokens: int, width: int, k: float, ranks: int, links: Links) -> float:
    """Seconds that the all-to-alls of one layer take."""
    crossing = between_nodes(tokens, width, k, ranks, links.node_size)
    staying = all_to_all_elements(tokens, width, k, ranks) - crossing
    return max(staying / links.inside, crossing / links.between)


def all_reduce_seconds(tokens: int, width: int, ranks: int, links: Links) -> float:
    """Seconds that the all-reduces of one tensor-parallel MLP take.

    Raises:
        ValueError: if the ranks do not fit a node: the formula is for one kind of link.
    """
    if ranks > links.node_size:
        raise ValueError(f"{ranks} tensor-parallel ranks do not fit a node of {links.node_size}")
    return all_reduce_elements(tokens, width, ranks) / links.inside


def smallest_k(ranks: int, tensor_ranks: int, experts: int, links: Links, same_batch: bool = False) -> int | None:
    """Smallest number of experts per token for which the all-to-all outlasts the all-reduce; None if there is none.

    same_batch: compare for the same batch on as many GPUs, not for the same micro-batch. At most ``experts`` are tried.
    """
    rival = all_reduce_seconds(tensor_ranks if same_batch else 1, 1, tensor_ranks, links)
    return next((k for k in range(1, experts + 1) if all_to_all_seconds(1, 1, k, ranks, links) > rival), None)
