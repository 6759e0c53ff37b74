"""What a mixture of experts sends, against what tensor parallelism sends: arithmetic alone.

All numbers are of one rank and one layer, forward and backward together, in elements. n is the number of tokens in
this rank's micro-batch, C the width, k the experts of a token; experts are spread evenly and chosen evenly. The size of
a node divides the number of ranks, or is larger.

    all-to-all         4 k n C (N-1)/N      rows go and come back, and so do their gradients
    all-reduce         4 n C (N-1)/N        by a ring: an MLP's output in forward, its input's gradient in backward

So for the same micro-batch, inside a node, the mixture's k rows for each token cost k times as much. But t
tensor-parallel ranks work on one micro-batch together, where expert-parallel ranks have one each. For the same batch on
as many GPUs a tensor-parallel rank works on t times as many tokens, and the mixture sends less as long as k is below t.
Then nodes decide. Tensor parallelism stays inside one; a mixture with more ranks than a node has leaves it. The links
inside a node and those between nodes work at the same time, so the slower of the two counts.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Links:
    """What a rank can send, in elements per second, and how many ranks share a node."""

    inside: float
    between: float
    node_size: int


def all_to_all_elements(tokens: int, width: int, k: float, ranks: int) -> float:
    """What a rank sends to its ``ranks - 1`` peers for one layer with experts."""
    return 4 * k * tokens * width * (ranks - 1) / ranks


def all_reduce_elements(tokens: int, width: int, ranks: int) -> float:
    """What a rank sends for one tensor-parallel MLP."""
    return 4 * tokens * width * (ranks - 1) / ranks


def between_nodes(tokens: int, width: int, k: float, ranks: int, node_size: int) -> float:
    """The part of the all-to-all that leaves the node."""
    return 4 * k * tokens * width * max(0, ranks - node_size) / ranks


def all_to_all_seconds(tokens: int, width: int, k: float, ranks: int, links: Links) -> float:
    """How long the all-to-alls of one layer take."""
    crossing = between_nodes(tokens, width, k, ranks, links.node_size)
    staying = all_to_all_elements(tokens, width, k, ranks) - crossing
    return max(staying / links.inside, crossing / links.between)


def all_reduce_seconds(tokens: int, width: int, ranks: int, links: Links) -> float:
    """How long the all-reduces of one tensor-parallel MLP take.

    Raises:
        ValueError: if the ranks do not fit a node: this formula is of one kind of link.
    """
    if ranks > links.node_size:
        raise ValueError(f"{ranks} tensor-parallel ranks do not fit a node of {links.node_size}")
    return all_reduce_elements(tokens, width, ranks) / links.inside


def smallest_k(ranks: int, tensor_ranks: int, experts: int, links: Links, same_batch: bool = False) -> int | None:
    """Smallest number of experts per token for which the all-to-all outlasts the all-reduce; None if there is none.

    With ``same_batch``, for the same batch on as many GPUs; otherwise for the same micro-batch. k ends at ``experts``.
    """
    rival = all_reduce_seconds(tensor_ranks if same_batch else 1, 1, tensor_ranks, links)
    return next((k for k in range(1, experts + 1) if all_to_all_seconds(1, 1, k, ranks, links) > rival), None)
