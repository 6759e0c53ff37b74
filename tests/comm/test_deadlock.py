"""Which ranks are deadlocked, and when all of them are known: from made-up scans, with a made-up clock."""

import pytest

from minidist.comm.runtime.deadlock import SETTLE_SECONDS, DeadlockWatch, find_deadlock
from minidist.comm.transports.status import BLOCKED, FINISHED, RUNNING, Status


def status(state, awaited=0, moved=0, polls=0):
    return Status(state, sum(1 << rank for rank in awaited) if awaited else 0, moved, polls)


@pytest.mark.parametrize(
    ("before", "after", "stuck"),
    [
        # two that wait for each other
        (
            [status(BLOCKED, [1]), status(BLOCKED, [0])],
            [status(BLOCKED, [1], 0, 2), status(BLOCKED, [0], 0, 2)],
            {0, 1},
        ),
        # one of them moved something in between
        ([status(BLOCKED, [1]), status(BLOCKED, [0])], [status(BLOCKED, [1], 1, 2), status(BLOCKED, [0], 0, 2)], set()),
        # one of them has not looked since
        ([status(BLOCKED, [1]), status(BLOCKED, [0])], [status(BLOCKED, [1], 0, 2), status(BLOCKED, [0], 0, 1)], set()),
        # it waits for one that runs
        ([status(BLOCKED, [1]), status(RUNNING)], [status(BLOCKED, [1], 0, 9), status(RUNNING)], set()),
        # it waits for one that has finished
        ([status(BLOCKED, [1]), status(FINISHED)], [status(BLOCKED, [1], 0, 9), status(FINISHED)], {0}),
        # that one has finished only since: it may have sent something first
        ([status(BLOCKED, [1]), status(RUNNING)], [status(BLOCKED, [1], 0, 9), status(FINISHED)], set()),
        # a chain that ends at one that runs
        (
            [status(BLOCKED, [1]), status(BLOCKED, [2]), status(RUNNING)],
            [status(BLOCKED, [1], 0, 9), status(BLOCKED, [2], 0, 9), status(RUNNING)],
            set(),
        ),
        # it waits for two, of which one runs
        (
            [status(BLOCKED, [1, 2]), status(BLOCKED, [0]), status(RUNNING)],
            [status(BLOCKED, [1, 2], 0, 9), status(BLOCKED, [0], 0, 9), status(RUNNING)],
            set(),
        ),
    ],
)
def test_what_counts_as_a_deadlock(before, after, stuck):
    assert find_deadlock(before, before, after) == stuck


def test_what_changed_between_the_first_two_scans_is_no_deadlock():
    """Rank 1 was read after its move, rank 0 before: only the second scan shows it."""
    first = [status(BLOCKED, [1], 0, 0), status(BLOCKED, [0], 1, 5)]
    second = [status(BLOCKED, [1], 0, 2), status(BLOCKED, [0], 1, 7)]
    assert find_deadlock(first, second, [status(BLOCKED, [1], 0, 2), status(BLOCKED, [0], 1, 9)]) == set()
    assert find_deadlock(first, second, [status(BLOCKED, [1], 0, 4), status(BLOCKED, [0], 1, 9)]) == {0, 1}
    moved = [status(BLOCKED, [1], 1, 2), status(BLOCKED, [0], 1, 7)]
    assert find_deadlock(first, moved, [status(BLOCKED, [1], 1, 9), status(BLOCKED, [0], 1, 9)]) == set()


class MadeUpRanks:
    """Ranks whose statuses a test sets, and a clock that it advances, under a DeadlockWatch.

    Args:
        awaits: for each rank, the ranks that it waits for; () while it runs, None once it has finished.
    """

    def __init__(self, *awaits):
        self.awaits, self.starved, self.polls, self.seconds = list(awaits), set(), [0] * len(awaits), 0.0
        self.watch = DeadlockWatch(self.scan, self.clock)

    def scan(self):
        states = {None: FINISHED, (): RUNNING}
        return [status(states.get(a, BLOCKED), a, 0, n) for a, n in zip(self.awaits, self.polls, strict=True)]

    def clock(self, ranks):
        self.clocked, start = ranks, self.seconds
        return lambda: self.seconds - start

    def look(self, seconds):
        """Look after so long; all blocked ranks but the starved ones have polled meanwhile."""
        self.seconds += seconds
        for rank in range(len(self.awaits)):
            self.polls[rank] += 9 * (rank not in self.starved)
        return self.watch.look()


def test_a_deadlock_of_all_is_told_at_the_first_look():
    ranks = MadeUpRanks((1,), (0,), None)
    assert ranks.look(0.01) and ranks.watch.stuck == {0, 1}


def test_a_rank_that_comes_late_still_belongs_to_the_deadlock():
    ranks = MadeUpRanks((1,), None, ())
    assert not ranks.look(0.01) and ranks.watch.stuck == {0} and ranks.clocked == {2}
    ranks.awaits[2] = (0,)
    assert not ranks.look(0.01)  # this scan differs from the two before
    assert ranks.look(0.01) and ranks.watch.stuck == {0, 2}


def test_a_rank_without_a_core_still_belongs_to_the_deadlock():
    """Rank 2 waits, but has not polled twice. The ranks that are stuck already need not poll any more."""
    ranks = MadeUpRanks((1,), None, (0,))
    ranks.starved = {2}
    assert not ranks.look(0.01) and ranks.watch.stuck == {0}
    ranks.starved = {0, 1}
    assert ranks.look(0.01) and ranks.watch.stuck == {0, 2}


def test_a_rank_that_computes_does_not_delay_the_report_for_long():
    ranks = MadeUpRanks((1,), (0,), ())
    assert not ranks.look(0.01) and not ranks.look(SETTLE_SECONDS / 2)
    assert ranks.look(SETTLE_SECONDS / 2) and ranks.watch.stuck == {0, 1}


def test_each_rank_that_joins_gives_the_others_time_again():
    ranks = MadeUpRanks((1,), None, (), ())
    assert not ranks.look(0.01) and ranks.clocked == {2, 3}
    ranks.awaits[2] = (0,)
    assert not ranks.look(0.75 * SETTLE_SECONDS)
    assert not ranks.look(0.0) and ranks.watch.stuck == {0, 2} and ranks.clocked == {3}
    assert not ranks.look(0.75 * SETTLE_SECONDS)
    assert ranks.look(0.25 * SETTLE_SECONDS) and ranks.watch.stuck == {0, 2}


def test_nobody_is_left_to_join_once_the_others_have_finished():
    ranks = MadeUpRanks((1,), (0,), ())
    assert not ranks.look(0.01)
    ranks.awaits[2] = None
    assert ranks.look(0.01) and ranks.watch.stuck == {0, 1}


def test_no_deadlock_is_told_however_long_the_wait():
    ranks = MadeUpRanks((1,), ())
    assert not any(ranks.look(10.0) for _ in range(9)) and not ranks.watch.stuck
