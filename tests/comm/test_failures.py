"""Errors name the failure, come quickly, and the next run works."""

import ctypes
import os
import signal
import sys
import time

import numpy as np
import pytest

import minidist as md
from minidist.comm.runtime import deadlock
from minidist.comm.runtime.launch import GRACE_SECONDS
from minidist.comm.transports.status import BLOCKED

LIMIT = 60  # seconds: far more than any of these may take
TOLD_WITHIN = 30  # seconds from the failure to the error, where a wait for the others' ends would take 60 and more


def until_waiting(world, *ranks):
    """Return once these ranks wait for a message."""
    while any(world.transport.segment.status[rank].read().state != BLOCKED for rank in ranks):
        time.sleep(0.01)


def failure(ranks, size, function, error):
    """The error of a run, raised in time; after it, the same cluster works."""
    cluster = ranks(size)
    cluster.run(lambda world: None, timeout=LIMIT)  # warm
    started = time.monotonic()
    with pytest.raises(error) as caught:
        cluster.run(function, timeout=LIMIT)
    assert time.monotonic() - started < TOLD_WITHIN
    assert cluster.run(lambda world: world.rank, timeout=LIMIT) == list(range(size))
    return caught.value


def raises_in_rank_one(world):
    if world.rank == 1:
        until_waiting(world, 0, 2)
        raise ValueError("no such shard")
    md.barrier(world)


def test_an_exception_carries_the_ranks_own_traceback(ranks):
    error = failure(ranks, 3, raises_in_rank_one, md.RankFailed)
    text = str(error)
    assert error.rank == 1 and error.exitcode is None
    assert text.startswith("rank 1 of 3 failed: ValueError: no such shard")
    assert 'raise ValueError("no such shard")' in error.traceback_text and "worker.py" not in error.traceback_text
    assert text.count("Traceback") == 1  # the followers' failures are folded away
    assert "rank 0 was in barrier()" in text and "rank 2 was in barrier()" in text


def test_an_exception_while_others_compute(ranks):
    def main(world):
        if world.rank == 0:
            raise KeyError("missing")
        time.sleep(60)

    assert "rank 2 was computing" in str(failure(ranks, 3, main, md.RankFailed))


@pytest.mark.parametrize(
    ("name", "text"),
    [("SIGKILL", "was killed by SIGKILL (likely: kill -9, or the system ran out of memory"), ("SIGSEGV", "by SIGSEGV")],
)
@pytest.mark.skipif(sys.platform == "win32", reason="signals as on Unix")
def test_a_signal_is_named_with_its_likely_cause(ranks, name, text):
    def main(world):
        if world.rank == 1:
            os.kill(os.getpid(), getattr(signal, name))
        md.barrier(world)

    error = failure(ranks, 3, main, md.RankFailed)
    assert error.rank == 1 and error.exitcode == -getattr(signal, name) and text in str(error)


def test_an_exit(ranks):
    def hard(world):
        if world.rank == 1:
            os._exit(3)
        md.barrier(world)

    def soft(world):
        if world.rank == 1:
            sys.exit("enough")
        md.barrier(world)

    error = failure(ranks, 2, hard, md.RankFailed)
    assert error.rank == 1 and error.exitcode == 3 and "exited with status 3 during the run" in str(error)
    assert "rank 1 of 2 failed: SystemExit: enough" in str(failure(ranks, 2, soft, md.RankFailed))


def both_receive(world):
    if world.rank < 2:
        md.recv(np.zeros(3), 1 - world.rank, world)


def test_deadlock_of_two_receives(ranks):
    error = failure(ranks, 3, both_receive, md.Deadlock)
    text = str(error)
    assert set(error.waiting) == {0, 1}
    line = both_receive.__code__.co_firstlineno + 2
    for rank in (0, 1):
        assert (
            f"rank {rank} is in recv: waits for a message from rank {1 - rank}, at test_failures.py:{line} in" in text
        )
    assert "batch_isend_irecv" in text


def ring_of_sends(world):
    x = np.zeros(1 << 20)  # 8 MiB, more than a queue
    md.send(x, (world.rank + 1) % world.size, world)
    md.recv(x, (world.rank - 1) % world.size, world)


@pytest.mark.parametrize("size", [2, 3, 5])
def test_deadlock_of_a_ring_of_sends_larger_than_the_queue(ranks, size):
    text = str(failure(ranks, size, ring_of_sends, md.Deadlock))
    for rank in range(size):
        assert f"rank {rank} is in send: waits for rank {(rank + 1) % size} to take 8,388,608 bytes" in text
    assert "the messages do not fit the queues" in text


def test_the_same_ring_of_sends_works_while_it_fits(ranks):
    def ring(world):
        x = np.zeros(100)
        md.send(x, (world.rank + 1) % world.size, world)
        md.recv(x, (world.rank - 1) % world.size, world)

    ranks(5).run(ring, timeout=LIMIT)


def one_skips(world):
    if world.rank != 1:
        md.all_reduce(np.zeros(3), group=world)


def test_deadlock_when_one_rank_skips_a_collective(ranks):
    text = str(failure(ranks, 3, one_skips, md.Deadlock))
    assert "rank 1 has finished" in text
    call = "is in all_reduce(SUM, float64 (3,), tree), collective 1 of the world"
    assert f"rank 0 {call}" in text or f"rank 2 {call}" in text  # whichever is stuck first
    assert f"test_failures.py:{one_skips.__code__.co_firstlineno + 2} in one_skips" in text


def test_deadlock_in_an_asynchronous_collective(ranks):
    def main(world):
        if world.rank:
            md.all_reduce(np.zeros(3), group=world, async_op=True).wait()

    assert "started asynchronously at test_failures.py" in str(failure(ranks, 3, main, md.Deadlock))


def test_deadlock_between_a_collective_and_a_receive(ranks):
    def main(world):
        if world.rank == 0:
            md.recv(np.zeros(3), 1, world)
        md.all_reduce(np.zeros(3), group=world, algorithm="ring")

    text = str(failure(ranks, 2, main, md.Deadlock))
    assert "rank 0 is in recv" in text and "rank 1 is in all_reduce" in text


def test_deadlock_of_two_different_collectives(ranks):
    """Here both wait before either sends, so that no message could show the disagreement."""

    def main(world):
        if world.rank == 0:
            md.reduce(np.zeros(3), 0, group=world)
        else:
            md.broadcast(np.zeros(3), 0, group=world)

    text = str(failure(ranks, 2, main, md.Deadlock))
    assert "rank 0 is in reduce(dst=0, SUM" in text and "rank 1 is in broadcast(src=0" in text
    assert "must make the same collective calls in the same order" in text


def test_part_of_the_ranks_deadlocks_while_another_computes(ranks):
    def main(world):
        if world.rank == 2:
            time.sleep(60)
        else:
            md.recv(np.zeros(3), 1 - world.rank, world)

    text = str(failure(ranks, 3, main, md.Deadlock))
    assert text.startswith("ranks 0, 1 of 3") and "rank 2 was still running" in text


@pytest.mark.long
def test_a_deadlock_is_told_as_one_if_the_time_limit_comes_before_it_has_settled(ranks, monkeypatch):
    def main(world):
        if world.rank == 2:
            time.sleep(60)
        else:
            md.recv(np.zeros(3), 1 - world.rank, world)

    monkeypatch.setattr(deadlock, "SETTLE_SECONDS", float("inf"))
    with pytest.raises(md.Deadlock):
        ranks(3).run(main, timeout=3)


@pytest.mark.long
def test_waiting_for_a_rank_that_computes_is_no_deadlock(ranks):
    def main(world):
        if world.rank == 2:
            time.sleep(1.0)
        x = np.ones(300_000)
        md.all_reduce(x, group=world)
        return x[0]

    assert ranks(3).run(main, timeout=LIMIT) == [3.0] * 3


DISAGREEMENTS = {
    "another collective": (
        lambda w: md.broadcast(np.zeros(3), 0, w) if w.rank else md.all_reduce(np.zeros(3), group=w, algorithm="ring"),
        ["all_reduce(SUM, float64 (3,)", "broadcast(src=0"],
    ),
    "another shape": (
        lambda w: md.all_reduce(np.zeros(3 + w.rank), group=w),
        ["float64 (3,)", "float64 (4,)"],
    ),
    "another dtype": (
        lambda w: md.all_reduce(np.zeros(3, "f" if w.rank else "d"), group=w, algorithm="ring"),
        ["float32 (3,)", "float64 (3,)"],
    ),
    "another operation": (
        lambda w: md.all_reduce(np.zeros(3), md.ReduceOp.MAX if w.rank else md.ReduceOp.SUM, group=w),
        ["all_reduce(MAX", "all_reduce(SUM"],
    ),
    "another algorithm": (
        lambda w: md.all_reduce(np.zeros(4), group=w, algorithm="ring" if w.rank else "two_shot"),
        ["ring)", "two_shot)"],
    ),
    "another order": (
        lambda w: [md.broadcast(np.zeros(n), 0, group=w, algorithm="naive") for n in ((2, 3) if w.rank else (3, 2))],
        ["float64 (2,)", "float64 (3,)", "collective 1 of the world"],
    ),
    "another size of a message": (
        lambda w: md.recv(np.zeros(3), 0, w) if w.rank else md.send(np.zeros(4), 1, w),
        ["rank 1 expects 3 elements from rank 0, which sent 4"],
    ),
    "another dtype of a message": (
        lambda w: md.recv(np.zeros(3), 0, w) if w.rank else md.send(np.zeros(6, "f"), 1, w),
        ["recv of a message of float64", "is a message of float32"],
    ),
}


@pytest.mark.parametrize("name", DISAGREEMENTS)
def test_the_error_names_the_ranks_that_disagree(ranks, name):
    function, texts = DISAGREEMENTS[name]
    error = failure(ranks, 2, function, md.RankFailed)
    assert "Mismatch: ranks" in str(error) and "disagree" in str(error)
    for text in texts:
        assert text in str(error)
    assert "algorithms.py" not in error.traceback_text  # ends at the user's line


def long_shape(place):
    """64 dimensions, of which one is 2: their description is longer than the 144 bytes that a header holds."""
    return tuple(2 if i == place else 1 for i in range(64))


def test_long_descriptions_are_compared_whole(ranks):
    """All that differs is far from both ends."""

    def main(world):
        md.all_reduce(np.zeros(long_shape(45 + world.rank)), group=world, algorithm="ring")

    description = f"all_reduce(SUM, float64 {long_shape(45)}, ring), collective 1 of the world"
    other = f"all_reduce(SUM, float64 {long_shape(46)}, ring), collective 1 of the world"
    assert description[:144] == other[:144] and description[-63:] == other[-63:]
    assert "Mismatch" in str(failure(ranks, 2, main, md.RankFailed))


def test_both_ends_of_a_long_description_are_shown(ranks):
    def main(world):
        x = np.zeros(long_shape(0))
        md.all_reduce(x, group=world, algorithm="ring" if world.rank else "two_shot")

    line = next(line for line in str(failure(ranks, 2, main, md.RankFailed)).splitlines() if "disagree" in line)
    ours, theirs = line.split("what came from rank")
    names = ("two_shot", "ring") if "Rank 0 called" in line else ("ring", "two_shot")
    for side, name in zip((ours, theirs), names, strict=True):
        assert side.count("all_reduce(SUM, float64 (2, 1") == 1
        assert side.count(f"1), {name}), collective 1 of the world") == 1


@pytest.mark.parametrize("wait_for_the_later_one", [True, False])
def test_an_error_in_the_background_is_not_lost(ranks, wait_for_the_later_one):
    """No rank waits for the collective that fails."""

    def main(world):
        md.broadcast(np.zeros(3 + world.rank), 0, world, async_op=True, algorithm="naive")
        later = md.broadcast(np.zeros(2), 0, world, async_op=True, algorithm="naive")
        if wait_for_the_later_one:
            later.wait()

    text = str(failure(ranks, 2, main, md.RankFailed))
    assert "Mismatch: ranks 1 and 0 disagree" in text and "started asynchronously at test_failures.py" in text


def test_an_error_in_the_background_is_reported_instead_of_the_deadlock_that_it_causes(ranks):
    """Rank 2's element count differs. The others continue to a call in which they would wait forever."""

    def other_collective(world):
        work = md.all_reduce(np.zeros(4 + world.rank // 2), group=world, async_op=True)
        time.sleep(0.1)  # for the background to find it first, as a rule
        md.all_reduce(np.zeros(2), group=world)
        work.wait()

    def message(world):
        work = md.all_reduce(np.zeros(4 + world.rank // 2), group=world, async_op=True)
        if world.rank == 0:
            md.recv(np.zeros(1), 1, world)
        work.wait()

    for main in (other_collective, message):
        assert "Mismatch: ranks" in str(failure(ranks, 3, main, md.RankFailed))


def test_a_mismatch_that_no_rank_waits_for_is_reported(ranks):
    def main(world):
        if world.rank == 0:
            md.send(np.zeros(5), 1, world)
        else:
            md.irecv(np.zeros(3), 0, world)
        md.barrier(world)

    assert "Mismatch: ranks 1 and 0 disagree" in str(failure(ranks, 2, main, md.RankFailed))


def test_what_is_waited_for_belongs_to_its_thread_and_its_run(ranks):
    def in_a_thread(world):
        import threading

        work, errors = md.irecv(np.zeros(1), 1 - world.rank, world), []

        def wait():
            try:
                work.wait()
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
        md.send(np.zeros(1), 1 - world.rank, world)
        return [*errors, work.wait()]

    def keep(world):
        md.kept = md.irecv(np.zeros(1), 1 - world.rank, world)

    def use(world):
        md.kept.wait()

    for error, done in ranks(2).run(in_a_thread, timeout=LIMIT):
        assert "only the thread that runs the rank's function" in error and done is True
    ranks(2).run(keep, timeout=LIMIT)
    assert "a run that has ended" in str(failure(ranks, 2, use, md.RankFailed))


def test_a_print_inside_a_print(ranks, capsys):
    def main(world):
        import gc

        class Noisy:
            def __init__(self):
                self.me = self  # only the garbage collector can end it

            def __del__(self):
                print("gone")

        gc.set_threshold(5, 2, 2)
        for _ in range(300):
            Noisy()
            print("here")
        gc.set_threshold(700, 10, 10)
        gc.collect()

    ranks(2).run(main, timeout=LIMIT)
    lines = capsys.readouterr().out.splitlines()
    assert sorted(set(lines)) == ["gone", "here"] and lines.count("here") == 600 == lines.count("gone")


def test_a_launch_inside_a_rank_is_refused_under_every_start_method():
    import multiprocess

    for method in multiprocess.get_all_start_methods():
        with pytest.raises(md.RankFailed, match="this process is a rank, which starts no ranks of its own"):
            md.launch(lambda world: md.launch(len, 1), 1, timeout=LIMIT, start_method=method)


def test_deadlock_after_an_asynchronous_collective_has_ended(ranks):
    def main(world):
        md.all_reduce(np.zeros(3), group=world, async_op=True).wait()
        md.recv(np.zeros(3), 1 - world.rank, world)

    assert "rank 0 is in recv" in str(failure(ranks, 2, main, md.Deadlock))


def test_messages_from_a_thread_of_the_users_are_refused(ranks):
    def main(world):
        import threading

        errors = []

        def talk():
            try:
                md.barrier(world)
            except RuntimeError as error:
                errors.append(str(error))

        thread = threading.Thread(target=talk)
        thread.start()
        thread.join()
        return errors

    for errors in ranks(2).run(main, timeout=LIMIT):
        assert len(errors) == 1 and "for communication in the background use async_op=True" in errors[0]


def test_a_group_of_an_earlier_run_is_refused(ranks):
    def keep(world):
        md.kept = world

    def use(world):
        md.barrier(md.kept)

    ranks(2).run(keep, timeout=LIMIT)
    assert "this group belongs to a run that has ended" in str(failure(ranks, 2, use, md.RankFailed))


class NoWords(Exception):
    def __str__(self):
        raise OSError("no words")


def test_errors_that_cannot_be_printed_or_sent_are_reported_anyway(ranks):
    def speechless(world):
        raise NoWords

    def closes_stdout(world):
        with open(os.devnull, "w") as sys.stdout:
            print("hello")
        return 5

    def unpicklable_here(world):
        class Fails:
            def __reduce__(self):
                return (open, ("no/such/file",))

        return Fails()

    text = str(failure(ranks, 2, speechless, md.RankFailed))
    assert "failed: NoWords" in text and "raise NoWords" in text
    assert ranks(2).run(closes_stdout, timeout=LIMIT) == [5, 5]
    assert "its result cannot be unpickled here: FileNotFoundError" in str(
        failure(ranks, 2, unpicklable_here, md.RankFailed)
    )


@pytest.mark.skipif(sys.platform == "win32", reason="fork and signals as on Unix")
def test_a_killed_rank_is_noticed_although_its_child_lives_on(ranks):
    def main(world):
        if world.rank == 1:
            if os.fork() == 0:
                time.sleep(6)
                os._exit(0)
            os.kill(os.getpid(), signal.SIGKILL)
        md.barrier(world)

    assert failure(ranks, 2, main, md.RankFailed).exitcode == -signal.SIGKILL


@pytest.mark.long
def test_a_timeout_does_not_add_up_over_ranks_that_cannot_answer(ranks):
    def silent(world):
        ctypes.PyDLL(None).sleep(600)  # compiled code that does not let another thread answer

    cluster = ranks(12)
    cluster.run(lambda world: None, timeout=LIMIT)  # warm
    started = time.monotonic()
    with pytest.raises(TimeoutError, match="a place in compiled code"):
        cluster.run(silent, timeout=0.1)
    assert time.monotonic() - started < 12 / 2 * GRACE_SECONDS


def test_one_run_at_a_time(ranks):
    import threading

    cluster = ranks(2)
    begun, tried = threading.Event(), threading.Event()

    def on_report(rank, thing):
        begun.set()
        tried.wait(LIMIT)

    first = (lambda world: world.report("begun"),)
    thread = threading.Thread(target=cluster.run, args=first, kwargs={"timeout": LIMIT, "on_report": on_report})
    thread.start()
    assert begun.wait(LIMIT)
    with pytest.raises(RuntimeError, match="is running a function already"):
        cluster.run(len)
    tried.set()
    thread.join(LIMIT)
    assert cluster.run(lambda world: world.rank, timeout=LIMIT) == [0, 1]


def test_a_timeout_says_what_every_rank_was_doing(ranks):
    def main(world):
        while world.rank == 1:
            pass
        md.barrier(world)

    with pytest.raises(TimeoutError) as caught:
        ranks(2).run(main, timeout=0.7)
    text = str(caught.value)
    first = main.__code__.co_firstlineno
    assert "did not end within 0.7 s" in text
    assert "rank 0 is in barrier()" in text and "waits for a message from rank 1" in text
    assert any(f"rank 1 is at test_failures.py:{line} in main" in text for line in (first + 1, first + 2))


def test_arguments_of_launch():
    with pytest.raises(ValueError, match="world_size must be a whole number from 1 to 64, but is 0"):
        md.launch(len, 0)
    with pytest.raises(TypeError, match="must be a function"):
        md.launch("main", 1)
    with pytest.raises(ValueError, match="start_method 'thread' is not available here"):
        md.launch(len, 1, start_method="thread")
    with pytest.raises(ValueError, match="queue_bytes must be a multiple of 64"):
        md.Cluster(2, queue_bytes=1000)
    cluster = md.Cluster(1)
    cluster.close()
    with pytest.raises(RuntimeError, match="this Cluster is closed"):
        cluster.run(len)
