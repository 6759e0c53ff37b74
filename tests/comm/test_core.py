"""When a waiting rank gives up its core: made-up yields on a made-up clock, then real ranks whose yields take long."""

import time

import numpy as np
import pytest

import minidist as md
from minidist.comm.transports import core
from minidist.comm.transports.core import FORGO, IN_A_ROW, LONGEST_FORGONE, SHARED_SECONDS, Core

LIMIT = 60
MS = 1_000_000  # ns


class MadeUpTime:
    """A clock that only yields and the test advance; each yield takes as long as the test says."""

    def __init__(self, monkeypatch):
        self.now, self.taken = 7 * MS, 0
        monkeypatch.setattr(core.time, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(core, "_yield", self._yield)

    def _yield(self):
        self.now += self.taken


@pytest.mark.parametrize(
    ("taken", "shared", "forgone"),
    [
        (500, False, 0),  # nobody wants the core
        (200_000, True, 0),  # another rank had it, and waits again
        (4 * MS, True, FORGO * 4 * MS),  # another program had it for a time slice
        (3600 * 1000 * MS, True, LONGEST_FORGONE),  # the process was stopped meanwhile
    ],
)
def test_what_yields_tell(monkeypatch, taken, shared, forgone):
    clock, here = MadeUpTime(monkeypatch), Core()
    clock.taken = taken
    for _ in range(IN_A_ROW):
        assert not here.crowded
        assert (here.give_up() > SHARED_SECONDS) == shared
    assert here.crowded == (forgone > 0)
    clock.now += max(forgone - 1, 0)
    assert here.crowded == (forgone > 0)
    clock.now += 1
    assert not here.crowded
    here.give_up()  # one is enough to renew it
    assert here.crowded == (forgone > 0)


def test_long_yields_among_short_ones_tell_nothing(monkeypatch):
    clock, here = MadeUpTime(monkeypatch), Core()
    for _ in range(9):
        for clock.taken in [4 * MS] * (IN_A_ROW - 1) + [500]:
            here.give_up()
            assert not here.crowded


def beside_a_busy_program(world, count, nbytes):
    """Exchange messages; whenever a rank yields, another program has the core for 5 ms. How often did it, and for how
    long did all take?"""
    yields = 0

    def slow():
        nonlocal yields
        yields += 1
        time.sleep(5e-3)

    core._yield, fast = slow, core._yield
    try:
        began = time.perf_counter()
        for i in range(count):
            if i % world.size == world.rank:
                time.sleep(1e-3)  # the others wait
            md.all_reduce(np.zeros(nbytes // 8), group=world)
        return yields, time.perf_counter() - began
    finally:
        core._yield = fast


@pytest.mark.parametrize(("size", "count", "nbytes"), [(2, 200, 8), (3, 100, 8), (2, 2, 64 << 20)])
def test_ranks_yield_rarely_where_it_takes_long(ranks, size, count, nbytes):
    """Of many messages, and of one message of many pieces."""
    for yields, seconds in ranks(size).run(beside_a_busy_program, count, nbytes, timeout=LIMIT):
        assert yields <= IN_A_ROW + seconds / (5e-3 * FORGO)


def test_all_that_a_rank_sums_while_it_does_not_yield_is_right(ranks):
    def main(world):
        world.transport.core._crowded_until = time.perf_counter_ns() + LIMIT * 1000 * MS
        array = np.full(300_000, 1.0 + world.rank)
        work = md.all_reduce(array, group=world, async_op=True)
        other = np.arange(5) * (1 + world.rank)
        md.all_reduce(other, group=world.new_group(list(range(world.size))))
        work.wait()
        return array, other

    for array, other in ranks(5).run(main, timeout=LIMIT):
        assert (array == 15).all() and (other == np.arange(5) * 15).all()


def test_a_deadlock_is_told_while_no_rank_yields(ranks):
    def main(world):
        world.transport.core._crowded_until = time.perf_counter_ns() + LIMIT * 1000 * MS
        md.recv(np.zeros(1), (world.rank + 1) % world.size, world)

    with pytest.raises(md.Deadlock):
        ranks(3).run(main, timeout=LIMIT)
