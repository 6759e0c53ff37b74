"""All demonstrations, in the order of the menu."""

from functools import partial

from minidist.show.demos import collectives, kinds
from minidist.show.demos.demonstration import Demonstration


def _collective(kind: kinds.Kind, about: str) -> Demonstration:
    return Demonstration(kind.name, about, partial(collectives.film, kind), 4, 4, "numbers in each chunk")


DEMONSTRATIONS = {
    demonstration.name: demonstration
    for demonstration in (
        _collective(kinds.BROADCAST, "one rank's array on every rank: tree, naive, ring"),
        _collective(kinds.RING, "the ring all-reduce, chunk by chunk"),
        _collective(kinds.REDUCE_SCATTER, "of a sum one chunk on each rank"),
        _collective(kinds.ALL_GATHER, "every rank's chunk on every rank"),
        _collective(kinds.ALL_TO_ALL, "every rank something else for every other"),
    )
}
