"""What waiting tells, on made-up clocks: when a core is given up, what counts as computing, who is deadlocked."""

import time
from typing import NamedTuple

import numpy as np
import pytest

import minidist as md
from minidist.comm.runtime import patience
from minidist.comm.runtime.deadlock import SETTLE_SECONDS, DeadlockWatch, find_deadlock
from minidist.comm.runtime.patience import PATIENCE, PatientClock
from minidist.comm.transports import core
from minidist.comm.transports.compute_clock import ComputeClock
from minidist.comm.transports.core import FORGO, IN_A_ROW, LONGEST_FORGONE, SHARED_SECONDS, Core
from minidist.comm.transports.status import BLOCKED, FINISHED, RUNNING, Status

MS = 1_000_000  # ns

# When a waiting rank gives up its core


class MadeUpTime:
    """A clock that only yields and the test advance; each yield takes as long as the test says."""

    def __init__(self, monkeypatch):
        self.now, self.taken = 7 * MS, 0
        monkeypatch.setattr(core.time, "perf_counter_ns", lambda: self.now)
        monkeypatch.setattr(core, "_yield", self._yield)

    def _yield(self):
        self.now += self.taken


def test_what_yields_tell(monkeypatch):
    with monkeypatch.context() as patch:
        clock = MadeUpTime(patch)
        for clock.taken, shared, forgone in (
            (500, False, 0),  # nobody wants the core
            (200_000, True, 0),  # another rank had it, and waits again
            (4 * MS, True, FORGO * 4 * MS),  # another program had it for a time slice
            (3600 * 1000 * MS, True, LONGEST_FORGONE),  # the process was stopped meanwhile
        ):
            here = Core()
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
        here = Core()
        for clock.taken in ([4 * MS] * (IN_A_ROW - 1) + [500]) * 9:  # long ones among short ones tell nothing
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


def while_it_does_not_yield(world):
    world.transport.core._crowded_until = time.perf_counter_ns() + 10**6 * MS
    array, other = np.full(300_000, 1.0 + world.rank), np.arange(5) * (1 + world.rank)
    work = md.all_reduce(array, group=world, async_op=True)
    md.all_reduce(other, group=world.new_group(list(range(world.size))))
    work.wait()
    return (array == 15).all() and (other == np.arange(5) * 15).all()


def test_ranks_yield_rarely_where_it_takes_long_and_sum_all_the_same(ranks):
    """Of many messages, and of one message of many pieces."""
    for size, count, nbytes in ((2, 200, 8), (3, 100, 8), (2, 2, 64 << 20)):
        for yields, seconds in ranks(size).run(beside_a_busy_program, count, nbytes):
            assert yields <= IN_A_ROW + seconds / (5e-3 * FORGO), (size, nbytes)
    assert all(ranks(5).run(while_it_does_not_yield))


# What counts as computing, and towards a time limit


def test_waits_for_ranks_and_for_cores_are_told_apart(monkeypatch):
    now = np.array([10.0, 5.0])  # seconds; and of them, since the thread began, without a core
    monkeypatch.setattr(ComputeClock, "_look", lambda self: tuple(now))
    clock = ComputeClock()

    def has(seconds, without_core):
        return (clock.seconds(), clock.seconds_without_core()) == (seconds, without_core)

    now += 4.0, 1.0
    assert has(3.0, 1.0)
    with clock.paused():
        now += 7.0, 2.0
        with clock.paused():
            now += 1.0, 0.0
    assert has(3.0, 1.0)
    now += 2.0, 0.5
    assert has(4.5, 1.5)
    clock = ComputeClock()
    clock._schedule = object()  # as on Linux
    now += 4.0, 1.5
    clock.count_wait(3.0, delay=1.0)  # a short wait counts as a pause does
    assert has(0.5, 0.5)
    clock._schedule = None  # elsewhere the clock sees no delay, so all of a wait was waiting
    clock.count_wait(0.25, delay=0.125)
    assert has(0.25, 0.5)


def test_a_time_limit_hardly_counts_waits_for_a_core(monkeypatch):
    """On two cores, from looks a second apart: how many ranks compute, and for how long all have had a core."""
    monkeypatch.setattr(patience, "cores", lambda: 2)
    for looks, seconds in (
        ([(0, 0.0)] * 4, 3.0),  # all sleep: as any clock
        ([(1, 0.0), (1, 1.0), (1, 2.0), (1, 3.0)], 3.0),  # one computes and has a core
        ([(1, 0.0), (1, 0.25), (1, 0.5), (1, 0.75)], 0.75),  # one computes, on a quarter of a core
        ([(4, 0.0), (4, 2.0), (4, 4.0), (4, 6.0)], 3.0),  # four share two cores, and have them to themselves
        ([(4, 0.0), (4, 1.0), (4, 2.0), (4, 3.0)], 1.5),  # and have half of them
        ([(1, 0.0)] * 4, 3 / PATIENCE),  # nothing moves: it ends all the same, some day
        ([(1, 0.0), (1, 9.0), (1, 9.0), (1, 9.0)], 1 + 2 / PATIENCE),  # never faster than time
        ([(1, 0.0), (1, 0.5), (0, 0.5), (0, 0.5)], 2.5),
    ):
        replies, now = iter(looks), iter(range(len(looks)))
        with monkeypatch.context() as patch:
            patch.setattr(PatientClock, "_look", lambda self: next(replies))  # noqa: B023
            patch.setattr(patience.time, "monotonic", lambda: next(now))  # noqa: B023
            clock = PatientClock([])
            assert [clock.seconds() for _ in looks[1:]][-1] == pytest.approx(seconds), looks


# Who is deadlocked


def status(awaited: tuple | None, moved: int = 0, polls: int = 0) -> Status:
    """A rank that waits for others; () while it runs, None once it has finished."""
    state = FINISHED if awaited is None else BLOCKED if awaited else RUNNING
    return Status(state, sum(1 << rank for rank in awaited or ()), moved, polls)


def test_what_counts_as_a_deadlock():
    """Of two scans; each rank's (whom it awaits, what it has moved, how often it has looked)."""
    for name, before, after, stuck in (
        ("two that wait for each other", [(1,), (0,)], [((1,), 0, 2), ((0,), 0, 2)], {0, 1}),
        ("one of them moved something", [(1,), (0,)], [((1,), 1, 2), ((0,), 0, 2)], set()),
        ("one of them has not looked since", [(1,), (0,)], [((1,), 0, 2), ((0,), 0, 1)], set()),
        ("it waits for one that runs", [(1,), ()], [((1,), 0, 9), ((),)], set()),
        ("it waits for one that has finished", [(1,), None], [((1,), 0, 9), (None,)], {0}),
        ("that one may have sent something first", [(1,), ()], [((1,), 0, 9), (None,)], set()),
        ("a chain", [(1,), (2,), ()], [((1,), 0, 9), ((2,), 0, 9), ((),)], set()),
        ("one of two runs", [(1, 2), (0,), ()], [((1, 2), 0, 9), ((0,), 0, 9), ((),)], set()),
    ):
        first = [*map(status, before)]
        assert find_deadlock(first, first, [status(*rank) for rank in after]) == stuck, name


def test_what_changed_between_the_first_two_scans_is_no_deadlock():
    """Rank 1 was read after its move, rank 0 before: only the second scan shows it."""
    first, second = [status((1,)), status((0,), 1, 5)], [status((1,), 0, 2), status((0,), 1, 7)]
    assert find_deadlock(first, second, [status((1,), 0, 2), status((0,), 1, 9)]) == set()
    assert find_deadlock(first, second, [status((1,), 0, 4), status((0,), 1, 9)]) == {0, 1}
    moved = [status((1,), 1, 2), status((0,), 1, 7)]
    assert find_deadlock(first, moved, [status((1,), 1, 9), status((0,), 1, 9)]) == set()


class Look(NamedTuple):
    """A look after so many seconds: whether a deadlock is told, of whom, and whose cores the watch's clock counts.

    Before it some ranks change whom they await. All blocked ranks but the starved ones have polled meanwhile.
    """

    seconds: float
    told: bool
    stuck: set | None = None
    clocked: set | None = None
    changes: dict = {}  # noqa: RUF012
    starved: set = set()  # noqa: RUF012


FIRST, S = Look(0.01, False), SETTLE_SECONDS
WATCHES = {  # whom each rank awaits, and what is seen then
    "all are told at the first look": ([(1,), (0,), None], [Look(0.01, True, {0, 1})]),
    "a rank that comes late belongs to it": ([(1,), None, ()], [Look(0.01, False, {0}, {2}),
        Look(0.01, False, changes={2: (0,)}),  # this scan differs from the two before
        Look(0.01, True, {0, 2})]),
    "so does one without a core": ([(1,), None, (0,)], [Look(0.01, False, {0}, starved={2}),
        Look(0.01, True, {0, 2}, starved={0, 1})]),  # those that are stuck already need not poll any more
    "one that computes delays it little": ([(1,), (0,), ()], [FIRST, Look(S / 2, False), Look(S / 2, True, {0, 1})]),
    "each that joins gives the others time": ([(1,), None, (), ()], [Look(0.01, False, clocked={2, 3}),
        Look(0.75 * S, False, changes={2: (0,)}), Look(0.0, False, {0, 2}, {3}),
        Look(0.75 * S, False), Look(0.25 * S, True, {0, 2})]),
    "nobody is left to join": ([(1,), (0,), ()], [FIRST, Look(0.01, True, {0, 1}, changes={2: None})]),
    "a long wait is none": ([(1,), ()], [Look(10.0, False, set())] * 9),
}  # fmt: skip


def test_when_all_of_a_deadlock_are_known():
    for name, (awaits, looks) in WATCHES.items():
        polls, now, clocked = [0] * len(awaits), [0.0], []
        scan = lambda: [status(a, 0, n) for a, n in zip(awaits, polls, strict=True)]  # noqa: B023, E731

        def clock(ranks):
            clocked[:], start = [ranks], now[0]  # noqa: B023
            return lambda: now[0] - start  # noqa: B023

        watch = DeadlockWatch(scan, clock)
        for number, look in enumerate(looks):
            for rank, awaited in look.changes.items():
                awaits[rank] = awaited
            now[0] += look.seconds
            for rank in {*range(len(awaits))} - look.starved:
                polls[rank] += 9
            assert watch.look() == look.told, (name, number)
            assert look.stuck in (None, watch.stuck), (name, number)
            assert look.clocked is None or clocked == [look.clocked], (name, number)
