"""Every collective, called once."""

import numpy as np

import minidist as md
from minidist import ReduceOp


def call(world, collective: str, algorithm: str, elements: int, root: int) -> None:
    """Call a collective on float32 ones.

    Args:
        elements: of the whole buffer; the number of ranks divides them.
        root: ``src`` or ``dst``, where there is one.
    """
    full, part = np.ones(elements, np.float32), np.ones(elements // world.size, np.float32)
    parts = [part.copy() for _ in range(world.size)] if world.rank == root else None
    arguments = {
        "broadcast": (full, root, world),
        "reduce": (full, root, ReduceOp.SUM, world),
        "all_reduce": (full, ReduceOp.SUM, world),
        "reduce_scatter_tensor": (part, full, ReduceOp.SUM, world),
        "all_gather_into_tensor": (full, part, world),
        "all_to_all_single": (full.copy(), full, None, None, world),
        "scatter": (part, parts, root, world),
        "gather": (part, parts, root, world),
    }
    getattr(md, collective)(*arguments[collective], algorithm=algorithm)
