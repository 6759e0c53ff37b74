"""Steps and times of replayed runs, against the textbook's formulas."""

from math import ceil, log2

import numpy as np
import pytest

import minidist as md
from minidist import trace
from minidist.analysis.replay import flights, steps

ELEMENTS = 840  # divided by every number of ranks from 2 to 8


def recorded(world, call):
    trace.start()
    call(world)
    return trace.stop()


def all_reduce(algorithm):
    return lambda world: md.all_reduce(np.ones(ELEMENTS, np.float32), group=world, algorithm=algorithm)


STEPS = {  # of a call by N ranks
    all_reduce("ring"): lambda n: 2 * (n - 1),
    all_reduce("tree"): lambda n: 2 * ceil(log2(n)),
    all_reduce("direct"): lambda n: n - 1,
    all_reduce("halving_doubling"): lambda n: 2 * log2(n) if n.bit_count() == 1 else None,  # whatever it takes
    md.barrier: lambda n: ceil(log2(n)),
}


@pytest.mark.parametrize("size", [2, 3, 4, 5, 7, 8])
def test_steps_and_the_time_of_a_ring(ranks, size):
    logs = {call: ranks(size).run(recorded, call) for call in STEPS}
    wrong = [(steps(logs[call]), of_ranks(size)) for call, of_ranks in STEPS.items()]
    assert [(found, expected) for found, expected in wrong if expected not in (found, None)] == []
    found, nbytes = flights(next(iter(logs.values())), lambda nbytes: 3.0 + 0.25 * nbytes), ELEMENTS * 4 // size
    assert max(flight.end for flight in found) == 2 * (size - 1) * (3.0 + 0.25 * nbytes)
    assert len(found) == size * 2 * (size - 1) and {flight.nbytes for flight in found} == {nbytes}


def test_a_rank_receives_one_message_at_a_time_and_one_that_is_known_to_be_there_has_been_waited_for(ranks):
    def everybody_to_rank_0(world):
        x = np.ones(3)
        if world.rank:
            md.send(x, 0, world)
        for source in range(1, world.size if world.rank == 0 else 0):
            md.recv(x, source, world)

    def chain(world):
        """Asks until a message is there, passes it on, and waits only then."""
        x = np.ones(3)
        message = md.irecv(x, world.rank - 1, world) if world.rank else None
        while message and not message.is_completed():
            pass
        if world.rank < world.size - 1:
            md.send(x, world.rank + 1, world)
        if message:
            message.wait()

    found = flights(ranks(4).run(recorded, everybody_to_rank_0))
    assert [(flight.source, flight.start, flight.end) for flight in found] == [(1, 0, 1), (2, 1, 2), (3, 2, 3)]
    assert steps(ranks(4).run(recorded, chain)) == 3
    assert flights([[], []]) == [] and steps([[], []]) == 0
