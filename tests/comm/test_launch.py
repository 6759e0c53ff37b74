"""Starting and ending ranks: from any script, under every start method, whoever is interrupted; nothing is left."""

import os
import signal
import subprocess
import sys
from itertools import product

import multiprocess
import numpy as np
import pytest
from choosing import long
from scripts import LIMIT, assert_nothing_left, in_script, running, segments_of, states_of, until

import minidist as md

linux = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc and /dev/shm")
unix = pytest.mark.skipif(sys.platform == "win32", reason="forks and signals as on Unix")
METHODS = multiprocess.get_all_start_methods()

SCRIPT = """
import os, sys, threading
import numpy as np
import minidist as md

METHOD, OFFSET = "{method}", 10
sys.stdout.reconfigure(line_buffering=True)

def main(world, scale):
    x = np.full(3, (world.rank + OFFSET) * scale)
    md.all_reduce(x, group=world)
    return int(x[0])

def bad(world):
    if world.rank == 1:
        os._exit(1)
    md.barrier(world)

def in_threads(count, *call):
    threads = [threading.Thread(target=call[0], args=call[1:]) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

def forked(child):
    if (pid := os.fork()) == 0:
        child()
        sys.exit(7)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def use():
    try:
        cluster.run(square)
    except RuntimeError as error:
        print(str(error).split(" belong")[0])

print("once", md.launch(main, 3, 2, start_method=METHOD))
in_threads(3, md.launch, md.barrier, 3)
for _ in range(2):
    try:
        md.launch(bad, 3, start_method=METHOD)
    except md.RankFailed as error:
        print("failed", error.rank)

cluster, square = md.Cluster(2, start_method=METHOD), lambda world: world.rank ** 2
in_threads(1, cluster.run, square)  # that thread has ended when the ranks are used
with cluster:
    print(cluster.run(square), cluster.run(lambda world: OFFSET))
    for child in (lambda: None, cluster.close, use, lambda: print(md.launch(main, 3, 1, start_method=METHOD))):
        print(forked(child), cluster.run(square))

forgotten = md.Cluster(3, keep_survivors=True)  # neither closed nor used in a with
try:
    forgotten.run(bad)
except md.RankFailed:
    print(forgotten.survivors)
{end}
"""
PRINTED = """\
once [66, 66, 66]
failed 1
failed 1
[0, 1] [10, 10]
7 [0, 1]
7 [0, 1]
the ranks of this Cluster
7 [0, 1]
[33, 33, 33]
7 [0, 1]
[0, 2]
"""


@unix
@pytest.mark.parametrize(
    ("method", "end", "status"),
    [
        (METHODS[0], "", 0),
        *(long(method, "", 0) for method in METHODS[1:]),
        *(long(METHODS[0], end, status) for end, status in (("forgotten.close()", 0), ("os.kill(os.getpid(), 9)", -9))),
    ],
)
def test_a_script_without_a_guard_starts_ranks_in_threads_and_beside_forks(tmp_path, method, end, status):
    """Forked children leave the parent's ranks alone, may not use them, and start their own. Survivors end with it."""
    script = SCRIPT.replace("{method}", method).replace("{end}", end)
    assert in_script(tmp_path, script) == (status, PRINTED, "")


@unix
@pytest.mark.parametrize("method", [METHODS[0], *map(long, METHODS[1:])])
def test_ranks_that_nobody_has_closed_end_with_python(tmp_path, method):
    """They end even where multiprocess ends its processes before the Cluster can: by SIGTERM, which ranks outlive."""
    script = f"""
        import weakref
        weakref.finalize(weakref.finalize, print, "the end")   # the first finalizer decides when all are called
        import minidist as md
        with md.Cluster(2, start_method="{method}"):
            pass                                   # ranks that have never run anything end silently
        forgotten = md.Cluster(2, start_method="{method}")
        print(forgotten.run(lambda world: world.rank))
        """
    assert in_script(tmp_path, script) == (0, "[0, 1]\nthe end\n", "")


@unix
def test_a_child_can_start_ranks_after_its_parent_has_ended(tmp_path):
    """Daemons do this. The parent takes its fork server and its temporary folder with it."""
    script = """
        import os, sys
        import minidist as md
        print(md.launch(lambda world: world.rank, 1), flush=True)
        ended, end = os.pipe()
        if os.fork() == 0:
            os.close(end)
            os.read(ended, 1)    # until the parent has ended
            print(md.launch(lambda world: world.size, 2))
            sys.exit()
        """
    assert in_script(tmp_path, script) == (0, "[0]\n[2, 2]\n", "")


WAITING = """
import os, signal, time
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
SLEEPS, WAITS, COMPUTES = "time.sleep(600)", "md.barrier(world) if world.rank else time.sleep(600)", "while True: pass"
STOPS = "world.rank or os.kill(os.getpid(), signal.SIGSTOP); time.sleep(600)"  # no thread of it watches its parent


@linux
@pytest.mark.parametrize(
    ("work", "name", "method"),
    [
        (SLEEPS, "INT", "forkserver"),
        (WAITS, "KILL", "forkserver"),
        (COMPUTES, "TERM", "forkserver"),
        (STOPS, "KILL", "forkserver"),
        long(COMPUTES, "KILL", "forkserver"),
        *(long(STOPS, "KILL", method) for method in ("spawn", "fork")),
    ],
)
def test_interrupting_or_killing_the_parent_leaves_nothing(tmp_path, scratch, work, name, method):
    """SIGKILL is for the parent alone. A terminal's Ctrl-C goes to every process, and so does what ends a job."""
    with running(tmp_path, WAITING.format(work, method), TMPDIR=str(scratch)) as process:
        for _ in range(3):
            assert process.stdout.readline() == "ready\n"
        if work == STOPS:
            until(lambda: "stopped" in states_of(process.pid))
        assert len(list(scratch.iterdir())) == (method == "forkserver")
        (os.kill if name == "KILL" else os.killpg)(process.pid, getattr(signal, f"SIG{name}"))
        assert_nothing_left(process.pid)
        assert not list(scratch.iterdir())
        assert process.stdout.read() == "interrupted\n" * (name == "INT")


@unix
def test_a_rank_outlives_what_a_terminal_or_the_end_of_a_job_sends_to_all():
    """Idle or at work: the parent hears of it too, and decides. What a rank starts can be ended."""

    def interrupted(world):
        for name in "SIGINT", "SIGTERM":
            signal.raise_signal(getattr(signal, name))
        with subprocess.Popen(["sleep", "600"]) as child:
            child.terminate()
        return os.getpid()

    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits that it is ignored
    for method in METHODS:
        with md.Cluster(2, start_method=method) as cluster:
            pids = cluster.run(interrupted, timeout=LIMIT)
            for pid, name in product(pids, ("SIGINT", "SIGTERM")):
                os.kill(pid, getattr(signal, name))
            assert cluster.run(interrupted, timeout=LIMIT) == pids
    signal.signal(signal.SIGINT, handler)


@unix
def test_a_rank_that_has_not_begun_does_not_count_as_finished():
    """Rank 1 is stopped between two runs. Rank 0 waits for it meanwhile, which is no deadlock: rank 1 will go on."""

    def receive(world):
        x = np.full(1, world.rank + 6)
        (md.send if world.rank else md.recv)(x, 1 - world.rank, world)
        return x[0]

    with md.Cluster(2) as cluster:
        pids = cluster.run(lambda world: os.getpid(), timeout=LIMIT)
        os.kill(pids[1], signal.SIGSTOP)
        # much later than a deadlock takes to be found
        go_on = subprocess.Popen(["sh", "-c", f"sleep 1; kill -CONT {pids[1]}"])
        assert cluster.run(receive, timeout=LIMIT) == [7, 7]
        assert go_on.wait(LIMIT) == 0


def test_a_server_that_cannot_start_is_told_from_a_refused_connection(monkeypatch):
    def refuse(process):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr(multiprocess.get_context(METHODS[0]).Process, "start", refuse)
    with pytest.raises(RuntimeError, match=r'cannot start ranks: the process that it needs .* or choose "thread"'):
        md.Cluster(2, start_method=METHODS[0]).run(len)


@linux
def test_too_little_memory_is_reported_before_a_rank_touches_it():
    from resource import RLIMIT_FSIZE, getrlimit, setrlimit

    segments, limit, shared = segments_of(os.getpid()), getrlimit(RLIMIT_FSIZE), os.statvfs("/dev/shm")
    too_much = (shared.f_bavail * shared.f_frsize + (1 << 30)) // 64 * 64
    with pytest.raises(MemoryError, match=r"MiB of shared memory, but /dev/shm has only .* --shm-size"):
        md.Cluster(2, queue_bytes=too_much).run(len)
    setrlimit(RLIMIT_FSIZE, (1 << 20, limit[1]))
    try:
        with pytest.raises(MemoryError, match=r"a file may have 1\.0 MiB at most here.*ulimit -f"):
            md.Cluster(2).run(len)
    finally:
        setrlimit(RLIMIT_FSIZE, limit)
    assert segments_of(os.getpid()) == segments


@unix
def test_a_rank_that_cannot_attach_to_the_shared_memory_says_so(monkeypatch):
    def refuse(name, create=False, size=0):
        if not create:
            raise OSError(24, "Too many open files", name)
        return create_memory(name, create, size)

    create_memory = multiprocess.shared_memory.SharedMemory
    monkeypatch.setattr(multiprocess.shared_memory, "SharedMemory", refuse)
    with pytest.raises(md.RankFailed, match=r"it cannot attach to the shared memory: OSError: .* open files"):
        md.launch(len, 3, start_method="fork", timeout=LIMIT)


@linux
def test_ctrl_c_during_the_imports_of_a_rank_is_left_to_the_parent(tmp_path):
    """The server of the ranks imports a module that interrupts it, as Ctrl-C in the terminal may."""
    (tmp_path / "interrupts.py").write_text(
        "import os, pathlib, signal\n"
        "pathlib.Path(__file__).with_name('imported').touch()\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
    )
    script = """
        import minidist as md
        from minidist.comm.runtime.clusters import preload
        preload("interrupts")
        print(md.launch(lambda world: world.rank, 2))
        """
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    assert in_script(tmp_path, script, PYTHONPATH=path) == (0, "[0, 1]\n", "")
    assert (tmp_path / "imported").exists()
