"""All demonstrations, in the order of the menu."""

from functools import partial

from minidist.show.demos import collectives
from minidist.show.demos.demonstration import Demonstration


def _collective(kind: collectives.Kind, about: str) -> Demonstration:
    return Demonstration(kind.name, about, partial(collectives.film, kind), 4, 4, "numbers in each chunk")


DEMONSTRATIONS = {
    demonstration.name: demonstration
    for demonstration in (
        _collective(collectives.BROADCAST, "one rank's array on every rank: tree, naive, ring"),
        _collective(collectives.RING, "the ring all-reduce, chunk by chunk"),
        _collective(collectives.REDUCE_SCATTER, "of a sum one chunk on each rank"),
        _collective(collectives.ALL_GATHER, "every rank's chunk on every rank"),
        _collective(collectives.ALL_TO_ALL, "every rank something else for every other"),
    )
}
