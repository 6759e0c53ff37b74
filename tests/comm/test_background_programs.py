"""Programs of several collectives in a group's background."""

import numpy as np
import pytest

import minidist as md

LIMIT = 30


def programs(world, count):
    """Each sums an array, then sums what it has made of the sum, on a group of the same ranks."""
    inside = world.new_group(list(range(world.size)))
    arrays, order = [np.full(5, float(world.rank + i)) for i in range(count)], []

    def program(i):
        md.all_reduce(arrays[i], group=inside)
        arrays[i] *= world.rank + 1
        md.all_reduce(arrays[i], group=inside)
        order.append(i)

    works = [world.start(f"program {i}", lambda i=i: program(i)) for i in range(count)]
    after = np.ones(1)
    md.all_reduce(after, group=world)  # of the group itself: waits its turn behind them
    assert order == list(range(count)) and all(work.is_completed() for work in works)
    works[-1].wait()
    return [array[0] for array in arrays], after[0]


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_programs_run_one_after_another(ranks, size):
    factor = size * (size + 1) // 2
    sums = [sum(rank + i for rank in range(size)) for i in range(4)]
    for found, after in ranks(size).run(programs, 4, timeout=LIMIT):
        assert found == [factor * total for total in sums] and after == size


def test_an_error_in_a_program_is_the_ranks_own(ranks):
    def main(world):
        def program():
            raise ArithmeticError("the third message is wrong")

        world.start("a program that fails", program).wait()

    with pytest.raises(md.RankFailed, match="the third message is wrong"):
        ranks(2).run(main, timeout=LIMIT)


def test_ranks_that_wait_for_a_program_that_cannot_go_on_are_named(ranks):
    """Rank 1 never takes part in what rank 0's program sums."""

    def main(world):
        inside = world.new_group([0, 1])
        if world.rank == 0:
            world.start("a lonely program", lambda: md.all_reduce(np.zeros(3), group=inside)).wait()
        else:
            md.recv(np.zeros(3), 0, world)

    with pytest.raises(md.Deadlock, match="rank 0"):
        ranks(2).run(main, timeout=LIMIT)
