"""Several arrays as one message, and the arrays of all servers on all ranks."""

from collections.abc import Mapping, Sequence
from math import prod

from minidist.backend import xp
from minidist.comm.collectives import broadcast
from minidist.comm.group import ProcessGroup
from minidist.parallel.loosened.shards import shard_map

Shapes = Mapping[str, tuple[int, ...]]  # of the full parameters, by name


def names_of_servers(shapes: Shapes, servers: int) -> list[list[str]]:
    """Which parameters each server holds."""
    return shard_map({name: prod(shape) for name, shape in shapes.items()}, servers)


def flattened(arrays: Sequence, dtype=xp.float32):
    """The arrays' elements, one after another, in a new array of a dtype; empty if there are no arrays."""
    return xp.concatenate([xp.empty(0, dtype), *(array.reshape(-1) for array in arrays)])


def unflatten(flat, arrays: Sequence) -> None:
    """Write the elements of ``flat`` into the arrays, one after another."""
    start = 0
    for array in arrays:
        array[...] = flat[start : start + array.size].reshape(array.shape)
        start += array.size


def full_from_servers(arrays: dict, shapes: Shapes, group: ProcessGroup, workers: int) -> dict:
    """All ranks get the arrays that the servers have, by parameter name. All call it together.

    Args:
        arrays: float32, this rank's own: of a server for each of its parameters; of a worker none.
        shapes: of all of them. group: the workers, and behind them the servers.
    """
    full = {}
    for server, names in enumerate(names_of_servers(shapes, group.size - workers)):
        found = {name: arrays.get(name, xp.empty(shapes[name], xp.float32)) for name in names}
        flat = flattened(list(found.values()))
        broadcast(flat, workers + server, group)
        unflatten(flat, list(found.values()))
        full |= found
    return full
