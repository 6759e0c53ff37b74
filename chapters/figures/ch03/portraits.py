"""Figure of every rank's array before and after a collective, in the colours of the ranks that contributed."""

from collections.abc import Callable

import numpy as np

from minidist.show.figures import contributions


def draw(cluster, **collectives: Callable):
    """Run collectives on marked arrays of four chunks; return a matplotlib Figure, two panels for each.

    Args:
        collectives: name -> ``fn(world, mine)``, which returns a rank's array before and after. A single chunk is drawn
            in the place of its rank.
    """
    panels = []
    for name, fn in collectives.items():
        before, after = zip(*cluster.run(before_and_after, fn), strict=True)
        panels += [(f"{name.replace('_', '-')}: before", np.stack(before)), ("after", np.stack(after))]
    return contributions.draw(panels, cluster.world_size)


def before_and_after(world, fn: Callable) -> list[np.ndarray]:
    """Return a rank's array before and after a collective, each with a place for every chunk."""
    mine = contributions.marked(world.rank, world.size)
    return [in_place(world, array) for array in fn(world, mine)]


def in_place(world, array: np.ndarray) -> np.ndarray:
    if len(array) == world.size:
        return array.copy()
    row = np.zeros(world.size, np.int64)
    row[world.rank] = array[0]
    return row
