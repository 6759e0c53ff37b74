"""Ranks that outlive the failure of another: with what they hold, in a new world, and nothing is left behind."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from failing import both_receive, raises
from scripts import LIMIT

import minidist as md
from minidist.comm.runtime import launch

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as on Unix")


@pytest.fixture
def cluster(ranks):
    ranks(1).run(lambda world: None)  # so that the server that forks ranks has loaded what they import
    with md.Cluster(4, keep_survivors=True) as found:
        yield found


def count(world):
    """Return how many runs this process has seen, and its number; after some traffic, also in the background."""
    world.kept["runs"] = world.kept.get("runs", 0) + 1
    x = np.full(100_003, world.rank + 1.0)
    for work in [md.all_reduce(x.copy(), group=world, async_op=True) for _ in range(3)]:
        work.wait()
    md.all_reduce(x, group=world, algorithm="ring")
    assert x[-1] == world.size * (world.size + 1) / 2
    return world.kept["runs"], os.getpid()


def counts(cluster) -> tuple[list, list]:
    """Return how many runs each rank has seen, and each rank's process."""
    return tuple(map(list, zip(*cluster.run(count, timeout=LIMIT), strict=True)))


def fails(cluster, kind, function, *arguments, **options):
    with pytest.raises(kind) as caught:
        cluster.run(function, *arguments, timeout=LIMIT, **options)
    return caught.value


def dies(world, rank):
    """One rank dies while the others are in the midst of a collective in the background."""
    works = [md.all_reduce(np.ones(300_000), group=world, async_op=True) for _ in range(3)]
    if world.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    for work in works:
        work.wait()


def test_survivors_keep_what_they_hold_and_missing_ranks_are_started(cluster):
    """One after another: rank 0, 2 or 3 dies; all outlive a deadlock and a rank that raises; two die together."""

    def two_die(world, pids):
        if world.rank == 1:
            os.kill(pids[3], signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        md.barrier(world)

    runs, pids = counts(cluster)
    for rank in (0, 2, 3):
        others = [n for n in range(4) if n != rank]
        assert fails(cluster, md.RankFailed, dies, rank).ranks == (rank,)
        assert cluster.survivors == others and not cluster.is_warm
        expected, (runs, after) = [*(runs[n] + 1 for n in others), 1], counts(cluster)
        assert runs == expected and after[:3] == [pids[n] for n in others] and after[3] not in pids
        pids = after
    for kind, function in ((md.Deadlock, both_receive), (md.RankFailed, raises)):
        fails(cluster, kind, function)
        assert cluster.survivors == [0, 1, 2, 3]
        runs = [n + 1 for n in runs]
        assert counts(cluster) == (runs, pids)
    assert sorted(fails(cluster, md.RankFailed, two_die, pids).ranks) == [1, 3] and cluster.survivors == [0, 2]


def test_other_numbers_of_ranks(cluster):
    _, pids = counts(cluster)
    fails(cluster, md.RankFailed, dies, 1)
    cluster.regroup(2, without=[0])  # of 0, 2 and 3
    assert counts(cluster) == ([2, 2], pids[2:])
    cluster.regroup(5)
    runs, after = counts(cluster)
    assert after[:2] == pids[2:] and runs == [3, 3, 1, 1, 1]
    cluster.regroup(1)
    assert counts(cluster) == ([4], [pids[2]]) and cluster.survivors == [0]


@pytest.mark.long
def test_a_rank_that_hangs_or_does_not_answer_in_time_is_ended_and_the_others_stay(cluster, monkeypatch):
    def hangs(world):
        time.sleep(600 * (world.rank == 2))
        md.barrier(world)

    def computes(world, seconds):
        if world.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        end = time.monotonic() + seconds * (world.rank == 1)
        while time.monotonic() < end:
            pass
        md.barrier(world)

    _, pids = counts(cluster)
    assert fails(cluster, md.Hang, hangs, patience=1.0).ranks == (2,) and cluster.survivors == [0, 1, 3]
    assert counts(cluster)[1][:3] == [pids[0], pids[1], pids[3]]
    with pytest.raises(ProcessLookupError):
        os.kill(pids[2], 0)
    for seconds, answer, survivors in ((0.5, LIMIT, [0, 1, 2]), (600, 1.0, [0, 2])):
        monkeypatch.setattr(launch, "ANSWER_SECONDS", answer)
        assert fails(cluster, md.RankFailed, computes, seconds).ranks == (3,) and cluster.survivors == survivors
        assert len(counts(cluster)[0]) == 4


@linux
def test_old_memory_and_old_threads_are_given_back_and_reports_delivered(cluster):
    def left(world):
        with open("/proc/self/maps", encoding="utf-8") as file:
            segments = {line.split()[5] for line in file if "/dev/shm/minidist-" in line}
        return len(segments), sorted(thread.name for thread in threading.enumerate())

    def reports(world):
        world.report("mine")
        if world.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        md.barrier(world)

    first, seen = cluster.run(left, timeout=LIMIT), []
    for _ in range(3):
        fails(cluster, md.RankFailed, dies, 3)
    fails(cluster, md.RankFailed, reports, on_report=lambda rank, thing: seen.append((rank, thing)))
    assert cluster.run(left, timeout=LIMIT)[:3] == first[:3] and first[0][0] == 1
    assert sorted(seen) == [(rank, "mine") for rank in range(4)]
