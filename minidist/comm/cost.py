"""Cost of each algorithm of each collective on links of two speeds, in closed form, and the choice of the cheapest.

The model is that of Hockney (1994), with two speeds: a message of m bytes takes alpha + beta m seconds, alpha and beta
of the link inside a node or between nodes, and keeps one port of its sender and one of its receiver busy for that time.
An algorithm takes the sum of its steps, and a step takes as long as its slowest message. (In a real run not every rank
waits for that message, so some trees are up to a third faster.) The formulas for links that are all alike follow from
these sums: those of Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication Operations in MPICH"
(2005), and for pipelined trees those of Sanders, Speck and Träff (2009). Combining numbers takes no time here.

analysis/replay.py replays real runs on the same model, and tests compare these sums with it. In its other model of a
network the latencies of consecutive messages overlap, and sending one costs nothing. So on a cluster's clock algorithms
that send to all ranks at once are faster than here, by up to four times where messages are small. A real network is
between the two: its cards send messages back to back, but each message costs the sender something.

M is the bytes of the whole buffer, as in algorithms.py. Every rank has links of its own, and they are never shared.
"""

from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise

from minidist.comm.algorithms import SEGMENT_BYTES
from minidist.comm.double_tree import Parents, double_tree, piece_count, trees_below
from minidist.comm.placement import HIERARCHICAL, Links, node_counts, node_grid


def seconds(
    collective: str, algorithm: str, nbytes: float, nodes: tuple[int, ...], links: Links | None = None, root: int = 0
) -> float:
    """Return the seconds that a collective takes if all ranks begin it at the same time.

    Args:
        collective: its name, such as "all_reduce" or "reduce_scatter_tensor".
        algorithm: one of its algorithms, by the name in collectives.py.
        nbytes: M; for an all-to-all what one rank sends, itself included, for a scatter or gather all pieces together.
        nodes: the node of each rank of the group, in the group's order.
        links: speeds of the links; None for ``Links()``.
        root: ``src`` or ``dst``, if the collective has one.

    Raises:
        ValueError: for an unknown name, or a hierarchical algorithm and nodes with different numbers of ranks.
    """
    if collective not in COSTS:
        raise ValueError(f"there is no collective {collective!r}: choose from {', '.join(COSTS)}")
    if algorithm not in COSTS[collective]:
        names = ", ".join(COSTS[collective])
        raise ValueError(f"{collective} has no algorithm {algorithm!r}: choose from {names}")
    if algorithm == HIERARCHICAL:
        node_grid(nodes)  # raises for nodes that are not alike
    return COSTS[collective][algorithm](Network(nodes, links or Links()), nbytes, root)


@lru_cache(maxsize=4096)
def cheapest(collective: str, nbytes: int, nodes: tuple[int, ...], links: Links | None = None, root: int = 0) -> str:
    """Return the algorithm that takes the least time. All ranks of a group find the same one."""
    even = len(set(node_counts(nodes))) == 1  # hierarchical algorithms need that
    names = [name for name in COSTS[collective] if even or name != HIERARCHICAL]
    return min(names, key=lambda name: seconds(collective, name, nbytes, nodes, links, root))


class Network:
    """Ranks on nodes, with their links."""

    def __init__(self, nodes: tuple[int, ...], links: Links) -> None:
        self.nodes, self.links, self.size = nodes, links, len(nodes)

    def message(self, source: int, destination: int, nbytes: float) -> float:
        """Seconds that one message takes."""
        same = self.nodes[source] == self.nodes[destination]
        return (self.links.inside if same else self.links.between).seconds(nbytes)

    def step(self, pairs: Iterable[tuple[int, int]], nbytes: float) -> float:
        """Seconds of messages sent at the same time, no two of them at one port: those of the slowest."""
        return max((self.message(*pair, nbytes) for pair in pairs), default=0.0)

    def shift(self, distance: int, nbytes: float) -> float:
        """Seconds of a step in which every rank sends to the rank ``distance`` places to its right."""
        return self.step(((rank, (rank + distance) % self.size) for rank in range(self.size)), nbytes)

    def levels(self) -> tuple["Network", "Network"]:
        """Return a rank's two parts of the group: ``inside`` and ``across``, as in two_level.py."""
        nodes, ranks = node_grid(self.nodes).shape
        return Network((0,) * ranks, self.links), Network(tuple(range(nodes)), self.links)


# Each function takes a network, M and the root, and returns the seconds of an algorithm.


def _one_by_one(network: Network, nbytes: float, root: int = 0) -> float:
    """Seconds in which the root sends M to every other rank, one after another, or receives M from each."""
    return sum(network.message(root, other, nbytes) for other in range(network.size) if other != root)


def _pieces_one_by_one(network: Network, nbytes: float, root: int) -> float:
    return _one_by_one(network, nbytes / network.size, root)


def _broadcast_tree(network: Network, nbytes: float, root: int) -> float:
    """Seconds of a binomial tree: in the step of distance d, the d ranks that have the array send it."""
    size, total, distance = network.size, 0.0, 1
    while distance < size:
        senders = [(root + place) % size for place in range(min(distance, size - distance))]
        total += network.step(((rank, (rank + distance) % size) for rank in senders), nbytes)
        distance *= 2
    return total


def _reduce_tree(network: Network, nbytes: float, root: int) -> float:
    """Seconds of a binomial tree: in the step of distance d, one of each pair of partial sums is sent to the other."""
    size, total, distance = network.size, 0.0, 1
    while distance < size:
        receivers = [(root + place) % size for place in range(0, size - distance, 2 * distance)]
        total += network.step((((rank + distance) % size, rank) for rank in receivers), nbytes)
        distance *= 2
    return total


def _pipelined_ring(network: Network, nbytes: float, root: int) -> float:
    """Seconds of a pipelined ring: the first piece crosses all links; the others follow at the pace of the slowest."""
    pieces = max(1, -(-nbytes // SEGMENT_BYTES))
    ranks = [(root + place) % network.size for place in range(network.size)]
    hops = [network.message(*pair, nbytes / pieces) for pair in pairwise(ranks)]
    return sum(hops) + (pieces - 1) * max(hops, default=0.0)


def _pipelined_trees(network: Network, nbytes: float, trees: tuple[Parents, Parents]) -> float:
    """Seconds down both trees: the first pieces reach the last rank, the others follow at the pace of the busiest port.

    The trees' messages also wait for each other now and then: a run may take up to half as long again.
    """
    pieces = piece_count(nbytes)
    each = nbytes / (2 * pieces)
    passing_on = [[0.0] * network.size for _ in trees]  # seconds in which a rank sends a piece to its children
    into = [0.0] * network.size  # seconds in which it receives a piece of each tree
    for parents, out in zip(trees, passing_on, strict=True):
        for rank, parent in enumerate(parents):
            if parent is not None:
                out[parent] += network.message(parent, rank, each)
                into[rank] += network.message(parent, rank, each)
    both = [sum(out) for out in zip(*passing_on, strict=True)]
    first = 0.0
    for parents, out in zip(trees, passing_on, strict=True):
        for above in parents:
            path = 0.0
            while above is not None:
                root_of_both = all(tree[above] is None for tree in trees)
                path += both[above] if root_of_both else out[above]
                above = parents[above]
            first = max(first, path)
    return first + (pieces - 1) * max(*both, *into)


def _ring(network: Network, nbytes: float, root: int = 0) -> float:
    return (network.size - 1) * network.shift(1, nbytes / network.size)


def _pairwise(network: Network, nbytes: float, root: int = 0) -> float:
    """Seconds in which every rank sends M/N to each other rank: to the right neighbour, then to the next, and so on.

    The "direct" algorithms post all of these messages at once, but their ports send and receive them one by one too.
    """
    return sum(network.shift(distance, nbytes / network.size) for distance in range(1, network.size))


def _halving_doubling(network: Network, nbytes: float, root: int) -> float:
    """Unless N is a power of two, a helper's port takes its partner's half before all of its extra rank's buffer."""
    power = 1 << (network.size.bit_length() - 1)
    swaps, distance = [], power // 2
    while distance:
        swaps.append(network.step(((rank, rank ^ distance) for rank in range(power)), nbytes * distance / power))
        distance //= 2
    if network.size == power:
        return 2 * sum(swaps)
    extra = network.step(((rank, rank - power) for rank in range(power, network.size)), nbytes)
    return 2 * (extra + sum(swaps)) + swaps[0]


def _hierarchical_broadcast(network: Network, nbytes: float, root: int) -> float:
    inside, across = network.levels()
    part = nbytes / inside.size
    return _pieces_one_by_one(inside, nbytes, 0) + _pipelined_ring(across, part, 0) + _ring(inside, nbytes)


def _hierarchical(network: Network, nbytes: float, root: int) -> float:
    """Seconds of a reduce-scatter inside, then across; or of an all-gather, the same in reverse."""
    inside, across = network.levels()
    return _ring(inside, nbytes) + _ring(across, nbytes / inside.size)


def _hierarchical_all_to_all(network: Network, nbytes: float, root: int) -> float:
    inside, across = network.levels()
    sizes = 8 * across.size * inside.size  # bytes of the sizes that colleagues exchange first
    return _pairwise(inside, sizes) + _pairwise(inside, nbytes) + _pairwise(across, nbytes)


def twice(cost: Callable[..., float]) -> Callable[..., float]:
    """Return the cost of an all-reduce whose two halves take as long as each other."""
    return lambda network, nbytes, root: 2 * cost(network, nbytes, 0)


COSTS = {
    "broadcast": {
        "naive": _one_by_one,
        "tree": _broadcast_tree,
        "ring": _pipelined_ring,
        "double_tree": lambda network, m, root: _pipelined_trees(network, m, trees_below(root, network.size)),
        HIERARCHICAL: _hierarchical_broadcast,
    },
    "reduce": {"naive": _one_by_one, "tree": _reduce_tree},
    "reduce_scatter_tensor": {"ring": _ring, "direct": _pairwise, HIERARCHICAL: _hierarchical},
    "all_gather_into_tensor": {"ring": _ring, "direct": _pairwise, HIERARCHICAL: _hierarchical},
    "all_reduce": {
        "naive": twice(_one_by_one),
        "tree": lambda network, m, root: _reduce_tree(network, m, 0) + _broadcast_tree(network, m, 0),
        "ring": twice(_ring),
        "two_shot": twice(_pairwise),
        "halving_doubling": _halving_doubling,
        "direct": lambda network, m, root: _pairwise(network, m * network.size),
        "double_tree": lambda network, m, root: 2 * _pipelined_trees(network, m, double_tree(network.size)),
        HIERARCHICAL: twice(_hierarchical),
    },
    "all_to_all_single": {"pairwise": _pairwise, HIERARCHICAL: _hierarchical_all_to_all},
    "scatter": {"direct": _pieces_one_by_one},
    "gather": {"direct": _pieces_one_by_one},
}
