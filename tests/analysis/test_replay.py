"""What a replay makes of messages in a row. (The textbook's steps and times: comm/test_algorithms.py.)"""

import numpy as np

import minidist as md
from minidist import trace
from minidist.analysis.replay import flights, steps


def recorded(world, call):
    trace.start()
    call(world)
    return trace.stop()


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
