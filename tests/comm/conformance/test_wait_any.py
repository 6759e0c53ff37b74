"""``wait_any``: whichever of several messages comes first, and what happens if none ever does."""

import time

import numpy as np
import pytest

import minidist as md


def first_come(world):
    """Rank 0 takes one message of each other rank, as they come; each sends when its turn is."""
    if world.rank:
        md.recv(np.empty(1, int), 0, world)  # the word to go
        md.send(np.full(world.rank, world.rank), 0, world, tag=1)
        return None
    turns, boxes = [3, 1, 4, 2], {rank: np.zeros(rank, int) for rank in range(1, world.size)}
    works = {rank: md.irecv(box, rank, world, tag=1) for rank, box in boxes.items()}
    came = []
    for rank in turns:
        md.send(np.zeros(1, int), rank, world)
        places = list(works)
        found = places[md.wait_any(list(works.values()))]
        works.pop(found).wait()
        came.append(found)
    assert all((box == rank).all() for rank, box in boxes.items())
    return came


def test_messages_are_taken_as_they_come(ranks):
    assert ranks(5).run(first_come)[0] == [3, 1, 4, 2]


def both_there(world):
    if world.rank:
        md.send(np.zeros(world.rank * 200_000), 0, world)  # one of them is larger than a queue
        return None
    works = [md.irecv(np.empty(rank * 200_000), rank, world) for rank in (1, 2)]
    for work in works:
        work.wait()
    return [md.wait_any(works), md.wait_any(works[::-1])]


def test_of_several_the_first_in_the_list_counts(ranks):
    assert ranks(3).run(both_there)[0] == [0, 0]


def one_may_still_send(world):
    if world.rank == 0:
        box = np.empty(1)
        return md.wait_any([md.irecv(np.empty(1), 1, world), md.irecv(box, 2, world)])
    if world.rank == 2:
        time.sleep(0.5)  # rank 1 has finished, and rank 0 has waited long for both
        md.send(np.ones(1), 0, world)
    return None


def test_it_is_none_while_one_of_them_may_still_send(ranks):
    assert ranks(3).run(one_may_still_send)[0] == 1


def wrong(world, what, message):
    alone = world.new_group([world.rank])
    works = [] if what == "nothing" else [md.all_reduce(np.zeros(1), group=alone, async_op=True)]
    with pytest.raises((TypeError, ValueError), match=message):
        md.wait_any(works)


@pytest.mark.parametrize(
    ("what", "message"), [("nothing", "at least one work"), ("a collective", "takes what isend and irecv return")]
)
def test_what_it_cannot_wait_for(ranks, what, message):
    ranks(2).run(wrong, what, message)
