"""Ranks that outlive the failure of another: with what they hold, in a new world, and nothing is left behind."""

import os
import signal
import sys
import threading
import time

import numpy as np
import pytest
from scripts import in_script, left_after

import minidist as md
from minidist.comm.runtime import launch

LIMIT = 120  # seconds, of each run
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals as on Unix")


@pytest.fixture
def cluster(ranks):
    ranks(1).run(lambda world: None)  # so that the server that forks ranks has loaded what they import
    with md.Cluster(4, keep_survivors=True) as found:
        yield found


def count(world):
    """How many runs this process has seen, and who it is; after some traffic, also in the background."""
    world.kept["runs"] = world.kept.get("runs", 0) + 1
    x = np.full(100_003, world.rank + 1.0)
    works = [md.all_reduce(x.copy(), group=world, async_op=True) for _ in range(3)]
    for work in works:
        work.wait()
    md.all_reduce(x, group=world, algorithm="ring")
    assert x[-1] == world.size * (world.size + 1) / 2
    return world.kept["runs"], os.getpid()


def dies(world, rank):
    """One rank dies while the others are in the midst of a collective in the background."""
    works = [md.all_reduce(np.ones(300_000), group=world, async_op=True) for _ in range(3)]
    if world.rank == rank:
        os.kill(os.getpid(), signal.SIGKILL)
    for work in works:
        work.wait()


@pytest.mark.parametrize("rank", [0, 2, 3])
def test_survivors_keep_what_they_hold_and_missing_ranks_are_started(cluster, rank):
    before = cluster.run(count, timeout=LIMIT)
    with pytest.raises(md.RankFailed) as caught:
        cluster.run(dies, rank, timeout=LIMIT)
    others = [n for n in range(4) if n != rank]
    assert caught.value.ranks == (rank,) and cluster.survivors == others and not cluster.is_warm
    after = cluster.run(count, timeout=LIMIT)
    assert [pid for _, pid in after[:3]] == [before[n][1] for n in others]
    assert [runs for runs, _ in after] == [2, 2, 2, 1]


def test_other_numbers_of_ranks(cluster):
    pids = [pid for _, pid in cluster.run(count, timeout=LIMIT)]
    with pytest.raises(md.RankFailed):
        cluster.run(dies, 1, timeout=LIMIT)
    cluster.regroup(2, without=[0])  # of 0, 2 and 3
    assert [pid for _, pid in cluster.run(count, timeout=LIMIT)] == pids[2:]
    cluster.regroup(5)
    after = cluster.run(count, timeout=LIMIT)
    assert [pid for _, pid in after[:2]] == pids[2:] and [runs for runs, _ in after] == [3, 3, 1, 1, 1]
    cluster.regroup(1)
    assert cluster.run(count, timeout=LIMIT) == [(4, pids[2])] and cluster.survivors == [0]
    with pytest.raises(ValueError, match="world_size must be a whole number from 1 to 64, but is 0"):
        cluster.regroup(0)


def test_all_outlive_a_deadlock(cluster):
    pids = [pid for _, pid in cluster.run(count, timeout=LIMIT)]
    with pytest.raises(md.Deadlock):
        cluster.run(lambda world: md.recv(np.zeros(1), (world.rank + 1) % world.size, world), timeout=LIMIT)
    assert cluster.run(count, timeout=LIMIT) == [(2, pid) for pid in pids]


def test_a_rank_that_raised_answers_too(cluster):
    def main(world):
        if world.rank == 1:
            raise KeyError("bug")
        md.barrier(world)

    cluster.run(count, timeout=LIMIT)
    with pytest.raises(md.RankFailed):
        cluster.run(main, timeout=LIMIT)
    assert cluster.survivors == [0, 1, 2, 3]


@pytest.mark.long
def test_a_rank_that_hangs_is_ended_and_the_others_stay(cluster):
    def main(world):
        if world.rank == 2:
            time.sleep(600)
        md.barrier(world)

    pids = [pid for _, pid in cluster.run(count, timeout=LIMIT)]
    with pytest.raises(md.Hang) as caught:
        cluster.run(main, patience=1.0, timeout=LIMIT)
    assert caught.value.ranks == (2,) and cluster.survivors == [0, 1, 3]
    assert [pid for _, pid in cluster.run(count, timeout=LIMIT)][:3] == [pids[0], pids[1], pids[3]]
    with pytest.raises(ProcessLookupError):
        os.kill(pids[2], 0)


@pytest.mark.long
@pytest.mark.parametrize(("seconds", "stays"), [(0.5, True), (600, False)])
def test_a_rank_that_computes_has_some_time_to_answer(cluster, monkeypatch, seconds, stays):
    def main(world, seconds):
        if world.rank == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        if world.rank == 1:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                pass
        md.barrier(world)

    if not stays:
        monkeypatch.setattr(launch, "ANSWER_SECONDS", 1.0)
    else:
        monkeypatch.setattr(launch, "ANSWER_SECONDS", LIMIT)
    cluster.run(count, timeout=LIMIT)
    with pytest.raises(md.RankFailed) as caught:
        cluster.run(main, seconds, timeout=LIMIT)
    assert caught.value.ranks == (3,)
    assert cluster.survivors == ([0, 1, 2] if stays else [0, 2])
    assert len(cluster.run(count, timeout=LIMIT)) == 4


def test_two_that_die_together_are_both_named(cluster):
    def main(world, pids):
        if world.rank == 1:
            os.kill(pids[3], signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)
        md.barrier(world)

    pids = [pid for _, pid in cluster.run(count, timeout=LIMIT)]
    with pytest.raises(md.RankFailed) as caught:
        cluster.run(main, pids, timeout=LIMIT)
    assert sorted(caught.value.ranks) == [1, 3] and cluster.survivors == [0, 2]


@linux
def test_old_memory_and_old_threads_are_given_back(cluster):
    def left(world):
        with open("/proc/self/maps") as file:
            segments = {line.split()[5] for line in file if "/dev/shm/minidist-" in line}
        return len(segments), sorted(thread.name for thread in threading.enumerate())

    first = cluster.run(left, timeout=LIMIT)
    for _ in range(3):
        with pytest.raises(md.RankFailed):
            cluster.run(dies, 3, timeout=LIMIT)
    assert cluster.run(left, timeout=LIMIT)[:3] == first[:3] and first[0][0] == 1


def test_reports_that_were_on_their_way_are_delivered(cluster):
    def main(world):
        if world.rank == 0:
            world.report("last words")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.2)
        world.report("mine")
        md.barrier(world)

    seen = []
    with pytest.raises(md.RankFailed):
        cluster.run(main, timeout=LIMIT, on_report=lambda rank, thing: seen.append((rank, thing)))
    assert sorted(seen) == [(0, "last words"), *((rank, "mine") for rank in (1, 2, 3))]


def test_without_being_asked_a_cluster_keeps_nobody(ranks):
    with md.Cluster(3) as cluster:
        pids = [pid for _, pid in cluster.run(count, timeout=LIMIT)]
        with pytest.raises(md.RankFailed):
            cluster.run(dies, 1, timeout=LIMIT)
        assert cluster.survivors == []
        after = cluster.run(count, timeout=LIMIT)
        assert [runs for runs, _ in after] == [1, 1, 1] and not {pid for _, pid in after} & set(pids)


@linux
@pytest.mark.parametrize(
    "end", ["cluster.close()", "del cluster", "sys.exit()", "os.kill(os.getpid(), signal.SIGKILL)"]
)
def test_survivors_end_with_their_parent(tmp_path, end):
    """Between two runs, when they wait for the next."""
    process = in_script(
        tmp_path,
        f"""
        import os, signal, sys
        import minidist as md
        def main(world):
            if world.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            md.barrier(world)
        cluster = md.Cluster(3, keep_survivors=True)
        try:
            cluster.run(main)
        except md.RankFailed:
            print(cluster.survivors, flush=True)
        {end}
        """,
        wait=False,
    )
    assert process.stdout.readline() == "[0, 2]\n"
    process.wait(LIMIT)
    assert left_after(process.pid) == ([], [])
    process.stdout.close()
    process.stderr.close()
