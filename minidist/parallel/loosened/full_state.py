"""The arrays of all parameter servers on all ranks."""

from minidist.backend import xp
from minidist.comm.collectives import broadcast
from minidist.comm.group import ProcessGroup
from minidist.parallel.loosened.shards import Shapes, names_of_servers
from minidist.parallel.tools.flat import flattened, unflatten


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
