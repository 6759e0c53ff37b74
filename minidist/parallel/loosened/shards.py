"""Which parameter server holds which parameters."""

from collections.abc import Mapping
from math import prod

from minidist.overrides import overridable

Shapes = Mapping[str, tuple[int, ...]]  # of the full parameters, by name


@overridable
def shard_map(sizes: Mapping[str, int], servers: int) -> list[list[str]]:
    """The names of the parameters that each server holds.

    The largest parameter goes first, each to the server that holds the fewest elements so far: no server then holds
    more than 4/3 of what the best division would give the fullest (Graham, "Bounds on Multiprocessing Timing
    Anomalies", 1969). TensorFlow's ``GreedyLoadBalancingStrategy`` does so without sorting.

    Args:
        sizes: elements of each parameter, by name. Of two as large, the one that comes first goes first.
        servers: how many there are; of two that hold as much, the one with the lower number gets the next.
    """
    shards: list[list[str]] = [[] for _ in range(servers)]
    held = [0] * servers
    for name in sorted(sizes, key=lambda name: -sizes[name]):
        emptiest = held.index(min(held))
        shards[emptiest].append(name)
        held[emptiest] += sizes[name]
    return shards


def names_of_servers(shapes: Shapes, servers: int) -> list[list[str]]:
    """The names of the parameters that each server holds."""
    return shard_map({name: prod(shape) for name, shape in shapes.items()}, servers)
