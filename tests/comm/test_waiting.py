"""What waiting tells, on made-up clocks: when a core is given up, what counts as computing, who is deadlocked."""

from types import SimpleNamespace

import numpy as np
import pytest

from minidist.comm.runtime.deadlock import SETTLE_SECONDS, DeadlockWatch, find_deadlock
from minidist.comm.transports import cores
from minidist.comm.transports.transport import BLOCKED, FINISHED, RUNNING, Status

MS = 1_000_000  # ns


def test_what_yields_tell(monkeypatch):
    """Only yields and the test advance the clock; each yield takes as long as the test says."""
    clock = SimpleNamespace(now=7 * MS, taken=0)
    with monkeypatch.context() as patch:
        patch.setattr(cores.time, "perf_counter_ns", lambda: clock.now)
        patch.setattr(cores, "_yield", lambda: setattr(clock, "now", clock.now + clock.taken))
        for clock.taken, shared, forgone in (
            (500, False, 0),  # nobody wants the core
            (200_000, True, 0),  # another rank had it, and waits again
            (4 * MS, True, cores.FORGO * 4 * MS),  # another program had it for a time slice
            (3600 * 1000 * MS, True, cores.LONGEST_FORGONE),  # the process was stopped meanwhile
        ):
            here = cores.Core()
            for _ in range(cores.IN_A_ROW):
                assert not here.crowded
                assert (here.give_up() > cores.SHARED_SECONDS) == shared
            assert here.crowded == (forgone > 0)
            clock.now += max(forgone - 1, 0)
            assert here.crowded == (forgone > 0)
            clock.now += 1
            assert not here.crowded
            here.give_up()  # one is enough to renew it
            assert here.crowded == (forgone > 0)
        here = cores.Core()
        for clock.taken in ([4 * MS] * (cores.IN_A_ROW - 1) + [500]) * 9:  # long ones among short ones tell nothing
            here.give_up()
            assert not here.crowded


# What counts as computing, and towards a time limit


def test_waits_for_ranks_and_for_cores_are_told_apart(monkeypatch):
    now = np.array([10.0, 5.0])  # seconds; and of them, since the thread began, without a core
    monkeypatch.setattr(cores.ComputeClock, "_look", lambda self: tuple(now))
    clock = cores.ComputeClock()

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
    clock = cores.ComputeClock()
    clock._schedule = object()  # as on Linux
    now += 4.0, 1.5
    clock.count_wait(3.0, delay=1.0)  # a short wait counts as a pause does
    assert has(0.5, 0.5)
    clock._schedule = None  # elsewhere the clock sees no delay, so all of a wait was waiting
    clock.count_wait(0.25, delay=0.125)
    assert has(0.25, 0.5)


def test_a_time_limit_hardly_counts_waits_for_a_core(monkeypatch):
    """Two cores, with looks a second apart: each row says how many ranks compute, and how long all have had a core."""
    monkeypatch.setattr(cores, "cores", lambda: 2)
    for looks, seconds in (
        ([(0, 0.0)] * 4, 3.0),  # all sleep: as any clock
        ([(1, 0.0), (1, 1.0), (1, 2.0), (1, 3.0)], 3.0),  # one computes and has a core
        ([(1, 0.0), (1, 0.25), (1, 0.5), (1, 0.75)], 0.75),  # one computes, on a quarter of a core
        ([(4, 0.0), (4, 2.0), (4, 4.0), (4, 6.0)], 3.0),  # four share two cores, and have them to themselves
        ([(4, 0.0), (4, 1.0), (4, 2.0), (4, 3.0)], 1.5),  # and have half of them
        ([(1, 0.0)] * 4, 3 / cores.PATIENCE),  # nothing moves: it ends all the same, some day
        ([(1, 0.0), (1, 9.0), (1, 9.0), (1, 9.0)], 1 + 2 / cores.PATIENCE),  # never faster than time
        ([(1, 0.0), (1, 0.5), (0, 0.5), (0, 0.5)], 2.5),
    ):
        replies, now = iter(looks), iter(range(len(looks)))
        with monkeypatch.context() as patch:
            patch.setattr(cores.PatientClock, "_look", lambda self: next(replies))  # noqa: B023
            patch.setattr(cores.time, "monotonic", lambda: next(now))  # noqa: B023
            clock = cores.PatientClock([])
            assert [clock.seconds() for _ in looks[1:]][-1] == pytest.approx(seconds), looks


# Who is deadlocked


def status(awaited: tuple | None, moved: int = 0, polls: int = 0) -> Status:
    """A rank that waits for others; () while it runs, None once it has finished."""
    state = FINISHED if awaited is None else BLOCKED if awaited else RUNNING
    return Status(state, sum(1 << rank for rank in awaited or ()), moved, polls)


def test_what_counts_as_a_deadlock():
    """Each row has two scans; a rank is (whom it awaits, what it has moved, how often it has looked)."""
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
    # What changed between the first two scans: rank 1 was read after its move, rank 0 before
    first, second = [status((1,)), status((0,), 1, 5)], [status((1,), 0, 2), status((0,), 1, 7)]
    assert find_deadlock(first, second, [status((1,), 0, 2), status((0,), 1, 9)]) == set()
    assert find_deadlock(first, second, [status((1,), 0, 4), status((0,), 1, 9)]) == {0, 1}


def test_when_all_of_a_deadlock_are_known():
    """Whom each rank awaits; looks: after how many seconds, who awaits whom by then, whether it is told, of whom."""
    for awaited, *looks in (
        ([(1,), (0,), None], (0.01, {}, True, {0, 1})),  # nobody is left to join
        # a rank that comes late belongs to it, once it has been seen twice
        ([(1,), None, ()], (0.01, {}, False, {0}), (0.01, {2: (0,)}, False, {0}), (0.01, {}, True, {0, 2})),
        # one that computes delays it little
        ([(1,), (0,), ()], (0.01, {}, False, {0, 1}), (SETTLE_SECONDS, {}, True, {0, 1})),
        ([(1,), ()], *[(10.0, {}, False, set())] * 9),  # a long wait is none
    ):
        state = SimpleNamespace(now=0.0, polls=0)

        def scan(state=state, awaited=awaited) -> list[Status]:
            return [status(ranks, 0, state.polls) for ranks in awaited]

        def clock(ranks: set, state=state):
            return lambda start=state.now: state.now - start

        watch = DeadlockWatch(scan, clock)
        for seconds, changes, told, stuck in looks:
            for rank in changes:
                awaited[rank] = changes[rank]
            state.now += seconds
            state.polls += 9
            assert (watch.look(), watch.stuck) == (told, stuck), (awaited, seconds)
