"""Starting and ending ranks: start methods, scripts without a guard, and nothing left behind."""

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import minidist as md

LIMIT = 60
linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")


def in_script(tmp_path, body: str, wait: bool = True):
    """Run a script as a user would: a plain file, without ``if __name__ == "__main__"``."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(body))
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    if not wait:
        limit = threading.Timer(LIMIT, process.kill)  # so that a read from it ends
        limit.daemon = True
        limit.start()
        return process
    out, err = process.communicate(timeout=LIMIT)
    return process.returncode, out, err


def group_of(pid: int) -> list[str]:
    """The command lines of the living processes of a session."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == pid and fields[0] != "Z":
                    found.append((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
    return found


def segments_of(pid: int) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if name.startswith(f"minidist-{pid}-")]


def left_after(pid: int, seconds: float = 60.0) -> tuple[list[str], list[str]]:
    """The processes and the shared memory of a script that are still there, at the latest after so long."""
    deadline = time.monotonic() + seconds
    while (group_of(pid) or segments_of(pid)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return group_of(pid), segments_of(pid)


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
    md.launch(main, 3)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@linux
@pytest.mark.parametrize(
    "work", ["time.sleep(60)", "md.barrier(world) if world.rank else time.sleep(60)", "while True: pass"]
)
@pytest.mark.parametrize("kill", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_interrupting_or_killing_the_parent_leaves_nothing(tmp_path, work, kill):
    process = in_script(tmp_path, WAITING.format(work), wait=False)
    try:
        for _ in range(3):
            assert process.stdout.readline() == "ready\n"
        assert segments_of(process.pid)
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
def test_too_little_shared_memory_is_reported_before_a_rank_touches_it():
    free = os.statvfs("/dev/shm")
    before = segments_of(os.getpid())
    too_much = (free.f_bavail * free.f_frsize + (1 << 30)) // 64 * 64
    with pytest.raises(MemoryError, match=r"MiB of shared memory, but /dev/shm has only .* --shm-size"):
        md.Cluster(2, queue_bytes=too_much).run(len)
    assert segments_of(os.getpid()) == before
