"""Starting and ending ranks: start methods, scripts without a guard, and nothing left behind."""

import os
import signal
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
from scripts import LIMIT, in_script, left_after, segments_of, states_of

import minidist as md

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")


@pytest.mark.long
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_functions_of_a_script_work_under_every_start_method(tmp_path, method):
    import multiprocess

    if method not in multiprocess.get_all_start_methods():
        pytest.skip(f"{method} is not available on {sys.platform}")
    code, out, err = in_script(
        tmp_path,
        f"""
        import numpy as np
        import minidist as md
        OFFSET = 10
        def helper(x):
            return x + OFFSET
        def main(world, scale):
            x = np.full(3, helper(world.rank) * scale)
            md.all_reduce(x, group=world)
            return int(x[0])
        print(md.launch(main, 3, 2, start_method="{method}"))
        with md.Cluster(2, start_method="{method}") as cluster:
            square = lambda world: world.rank ** 2
            print(cluster.run(square), cluster.run(lambda world: OFFSET))
        """,
    )
    assert (code, out) == (0, "[66, 66, 66]\n[0, 1] [10, 10]\n"), err


def test_results_come_in_the_order_of_ranks_and_prints_reach_the_parent(ranks, capsys):
    def main(world):
        time.sleep(0.02 * (world.size - world.rank))
        print("hello from", world.rank)
        print("no newline", end="")
        return np.arange(world.rank)

    results = ranks(3).run(main, timeout=LIMIT)
    assert [len(result) for result in results] == [0, 1, 2]
    out = capsys.readouterr().out
    assert sorted(line for line in out.replace("no newline", "").splitlines()) == [f"hello from {r}" for r in range(3)]
    assert out.count("no newline") == 3


def test_reports_arrive_during_the_run(ranks):
    seen = []

    def main(world):
        world.report(("step", world.rank))
        return world.rank

    ranks(2).run(main, timeout=LIMIT, on_report=lambda rank, thing: seen.append((rank, thing)))
    assert sorted(seen) == [(0, ("step", 0)), (1, ("step", 1))]


def test_a_large_argument_and_a_large_result(ranks):
    x = np.arange(3_000_000)
    results = ranks(2).run(lambda world, x: x + world.rank, x, timeout=LIMIT)
    assert (results[1] == x + 1).all()


def test_a_result_that_cannot_travel_is_an_error_of_its_rank(ranks):
    with pytest.raises(md.RankFailed, match=r"rank . of 2 failed: TypeError"):
        ranks(2).run(lambda world: (i for i in range(3)), timeout=LIMIT)


@linux
def test_nothing_is_left_after_success_and_failure(tmp_path):
    process = in_script(
        tmp_path,
        """
        import minidist as md, os
        md.launch(lambda world: md.barrier(world), 3)
        def bad(world):
            if world.rank: os._exit(1)
            md.barrier(world)
        for _ in range(2):
            try: md.launch(bad, 3)
            except md.RankFailed as error: print(error.rank)
        cluster = md.Cluster(2)      # forgotten: neither closed nor used in a with
        cluster.run(lambda world: None)
        """,
        wait=False,
    )
    out, err = process.communicate(timeout=LIMIT)
    assert process.returncode == 0 and err == "" and len(out.split()) == 2
    assert left_after(process.pid) == ([], [])


@linux
def test_launch_from_several_threads_and_in_a_script_that_forks(tmp_path):
    code, out, err = in_script(
        tmp_path,
        """
        import os, threading
        import minidist as md
        print("once")
        threads = [threading.Thread(target=lambda: md.launch(lambda world: md.barrier(world), 3)) for _ in range(3)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        with md.Cluster(2) as cluster:
            cluster.run(lambda world: None)
            if os.fork() == 0:
                cluster.close()
                os._exit(0)          # the ranks are the parent's: close() leaves them alone
            os.wait()
            print(cluster.run(lambda world: world.rank))
        """,
    )
    assert (code, out, err) == (0, "once\n[0, 1]\n", "")


WAITING = """
import signal
import time
import minidist as md
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs inherit that it is ignored
def main(world):
    print("ready", flush=True)
    {}
try:
    md.launch(main, 3, start_method="{}")
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@linux
@pytest.mark.parametrize(
    "work", ["time.sleep(60)", "md.barrier(world) if world.rank else time.sleep(60)", "while True: pass"]
)
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_interrupting_or_killing_the_parent_leaves_nothing(tmp_path, work, kill):
    process = in_script(tmp_path, WAITING.format(work, "forkserver"), wait=False)
    try:
        for _ in range(3):
            assert process.stdout.readline() == "ready\n"
        if kill == signal.SIGINT:
            os.killpg(process.pid, kill)  # a terminal's Ctrl-C goes to every process
        else:
            os.kill(process.pid, kill)
        assert left_after(process.pid, 30) == ([], [])  # and the ranks would sleep for 60
        if kill == signal.SIGINT:
            assert process.stdout.read() == "interrupted\n"
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@linux
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_a_stopped_rank_does_not_outlive_a_killed_parent(tmp_path, method):
    """It cannot watch its parent, as its threads do not run."""
    work = "world.rank or os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)"
    process = in_script(tmp_path, "import os\n" + WAITING.format(work, method), wait=False)
    try:
        for _ in range(3):
            assert process.stdout.readline() == "ready\n"
        deadline = time.monotonic() + LIMIT
        while "T" not in states_of(process.pid) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert "T" in states_of(process.pid)
        os.kill(process.pid, signal.SIGKILL)
        assert left_after(process.pid) == ([], [])
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@linux
@pytest.mark.parametrize("method", ["forkserver", "spawn", "fork"])
def test_ranks_outlive_the_thread_that_started_them(tmp_path, method):
    code, out, err = in_script(
        tmp_path,
        f"""
        import threading
        import minidist as md
        cluster = md.Cluster(2, start_method="{method}")
        thread = threading.Thread(target=cluster.run, args=(lambda world: None,))
        thread.start()
        thread.join()
        with cluster:
            print(cluster.run(lambda world: world.rank))
        """,
    )
    assert (code, out) == (0, "[0, 1]\n"), err


@linux
def test_ctrl_c_during_the_imports_of_a_rank_is_left_to_the_parent(tmp_path):
    """The server of the ranks imports a module that interrupts it, as Ctrl-C in the terminal may."""
    (tmp_path / "interrupts.py").write_text(
        "import os, pathlib, signal\n"
        "pathlib.Path(__file__).with_name('imported').touch()\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    code, out, err = in_script(
        tmp_path,
        f"""
        import os
        import minidist as md
        from minidist.comm.runtime.warm import preload
        os.environ["PYTHONPATH"] = os.pathsep.join([{str(tmp_path)!r}, os.environ.get("PYTHONPATH", "")])
        preload("interrupts")
        print(md.launch(lambda world: world.rank, 2))
        """,
    )
    assert (code, out, err) == (0, "[0, 1]\n", "")
    assert (tmp_path / "imported").exists()


@linux
def test_a_limit_on_the_size_of_files_is_named():
    import resource

    segments, before = segments_of(os.getpid()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(MemoryError, match=r"a file may have 1\.0 MiB at most here.*ulimit -f"):
            md.Cluster(2).run(len)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert segments_of(os.getpid()) == segments


def test_a_rank_that_runs_out_of_memory_says_so(ranks):
    """Python's own MemoryError has no text."""

    def out_of_memory(world):
        raise MemoryError

    with pytest.raises(md.RankFailed, match="rank 0 of 1 failed: MemoryError: out of memory"):
        ranks(1).run(out_of_memory)


@linux
def test_too_little_shared_memory_is_reported_before_a_rank_touches_it():
    free = os.statvfs("/dev/shm")
    before = segments_of(os.getpid())
    too_much = (free.f_bavail * free.f_frsize + (1 << 30)) // 64 * 64
    with pytest.raises(MemoryError, match=r"MiB of shared memory, but /dev/shm has only .* --shm-size"):
        md.Cluster(2, queue_bytes=too_much).run(len)
    assert segments_of(os.getpid()) == before
