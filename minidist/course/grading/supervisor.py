"""The process that watches over one workplace: ``python -m minidist.course.grading.supervisor FOLDER``.

It makes the workplace's folder inside FOLDER, runs the commands that arrive on its standard input, one JSON object a
line, and answers each with one line. When its input ends, because the process that started it has closed it or is gone,
even by kill -9, it ends every process of the command, removes the folder, and exits. workplace.py is the other side.

A command may do anything within its limits, which only this module sets: it watches the time and the number of
processes, and has the operating system limit the sizes of memory and files. On Linux this process is a *subreaper*:
when a process ends, its children become children of the subreaper instead of init's. So every descendant stays a
descendant, whatever session, group or environment it has chosen. Other systems have no subreapers. There, descendants
are also known by a mark in their environment, which they inherit.

This contains accidents. It is not a security sandbox: a process can read files, use the network, and kill this one.
"""

import ctypes
import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from contextlib import suppress
from functools import cache, partial
from queue import SimpleQueue

import psutil

from minidist.comm.runtime.starting import end_with_parent
from minidist.comm.runtime.sweep import scratch_folder, sweep

try:
    import resource
except ImportError:  # on Windows, whose processes get no limits
    resource = None

FILE_BYTES = 512 << 20  # largest size of any file; the ranks' shared memory counts as a file
POLL_SECONDS = 0.25  # listing the processes takes milliseconds
GRACE_SECONDS = 3.0  # for an interrupted command to end by itself
CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000  # from Linux's <linux/sched.h>
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 1 << 14, 1 << 18  # from <linux/mount.h>
MARK = "MINIDIST_SUPERVISED"
PR_SET_CHILD_SUBREAPER = 36  # from Linux's <sys/prctl.h>
END_SECONDS = 30.0  # to end all; some processes cannot be killed, such as another user's
ROUND_SECONDS = 0.02


def main(where: str) -> None:
    requests: SimpleQueue[dict | None] = SimpleQueue()
    interrupt = threading.Event()

    def end(*_) -> None:
        interrupt.set()
        requests.put(None)

    def listen() -> None:
        for line in sys.stdin:
            requests.put(json.loads(line))
        end()

    signal.signal(signal.SIGTERM, end)
    adopt_orphans()
    threading.Thread(target=listen, daemon=True).start()
    sweep()
    with scratch_folder(where) as folder:
        _answer({"folder": folder})
        while (request := requests.get()) is not None:
            _answer(supervise(**request, interrupt=interrupt))


def _answer(content: dict) -> None:
    with suppress(OSError):  # nobody reads it any more
        os.write(sys.stdout.fileno(), (json.dumps(content) + "\n").encode())


def supervise(
    command: list[str],
    environment: dict[str, str],
    cwd: str,
    output: str,
    seconds: float,
    processes: float,
    memory: float,
    interrupt: threading.Event,
) -> dict:
    """Run a command until it ends or exceeds a limit, then end every process that it started.

    Args:
        command: command to run; it gets a session of its own.
        environment: variables to set for it.
        output: file for what it prints.
        seconds, processes, memory: its limits: time, processes at once, GiB of each process.
        interrupt: event that ends it at once.

    Returns:
        The fields of workplace.py's Outcome.
    """
    mark = uuid.uuid4().hex
    prepare = partial(_prepare, can_have_own_shared_memory(), memory)
    deadline = time.monotonic() + seconds
    with open(output, "wb") as file:
        process = subprocess.Popen(
            command, cwd=cwd, env=os.environ | environment | {MARK: mark}, stdin=subprocess.DEVNULL, stdout=file,
            stderr=subprocess.STDOUT, start_new_session=True,
            preexec_fn=prepare if resource else None,
        )  # fmt: skip
    exceeded = ""
    try:
        while not exceeded and process.poll() is None:
            if interrupt.is_set():
                _interrupt(process)
                break
            if time.monotonic() > deadline:
                exceeded = "time"
            elif processes < math.inf and len(running(mark)) > processes:
                exceeded = "processes"
            else:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SECONDS)
    finally:
        status = process.returncode
        end_all(mark)
        process.wait()
        sweep()  # removes the shared memory of ranks whose parent was killed
    return {"status": status, "exceeded": exceeded}


def _prepare(own_shared_memory: bool, memory: float) -> None:
    """Set up the new process before it runs the command, whose processes inherit these settings."""
    end_with_parent()
    if own_shared_memory:
        have_own_shared_memory()
    assert resource is not None
    limits = [(resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_CORE, 0)]
    if memory < math.inf:
        limits.append((resource.RLIMIT_AS, int(memory * 2**30)))
    for kind, limit in limits:
        limit = min(limit, resource.getrlimit(kind)[1] % 2**63)  # the system's limit; none is -1 or, on macOS, 2^63 - 1
        resource.setrlimit(kind, (limit, limit))


def _interrupt(process: subprocess.Popen) -> None:
    """Let the command end its ranks and free their memory: only Linux would do so itself (comm/runtime/processes)."""
    if os.name == "posix":
        process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_SECONDS)


@cache
def can_have_own_shared_memory() -> bool:
    """Return whether ``have_own_shared_memory`` works, tried in a new process: half of it would be worse than none."""
    try:
        return sys.platform == "linux" and subprocess.run("true", preexec_fn=have_own_shared_memory).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def have_own_shared_memory() -> None:
    """Mount an empty /dev/shm that only this process and its children see. For use in a new process.

    Without the right to mount, it takes a user namespace, in which it keeps its user and group (man 7 user_namespaces).

    Raises:
        OSError: if the system does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        _check(libc.unshare(CLONE_NEWNS | CLONE_NEWUSER))
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w", encoding="utf-8") as written:
                written.write(text)
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    _check(libc.mount(b"minidist", b"/dev/shm", b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777"))


def _check(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def adopt_orphans() -> None:
    """Make this process a subreaper, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def running(mark: str) -> list[psutil.Process]:
    """Return all descendants that are running.

    Args:
        mark: value of the environment variable ``MARK`` that they inherit.
    """
    found = psutil.Process().children(recursive=True)
    if sys.platform != "linux":
        found += [process for process in psutil.process_iter() if _has(mark, process) and process not in found]
    return [process for process in found if _runs(process)]


def end_all(mark: str) -> None:
    """Kill all descendants, in rounds until none is left. They are suspended first, so that they start no more."""
    deadline = time.monotonic() + END_SECONDS
    while ((processes := running(mark)) or _children_left()) and time.monotonic() < deadline:
        for action in (psutil.Process.suspend, psutil.Process.kill):
            for process in processes:
                with suppress(psutil.Error):
                    action(process)
        time.sleep(ROUND_SECONDS)


def _children_left() -> bool:
    """Reap the children that have ended; return whether any is left.

    A list of running processes takes a while to make and can miss a child whose parent ends meanwhile. The kernel's
    answer to this question cannot.
    """
    if os.name != "posix":
        return False
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
        return True
    except ChildProcessError:
        return False


def _has(mark: str, process: psutil.Process) -> bool:
    try:
        return process.environ().get(MARK) == mark
    except (psutil.Error, OSError):  # it has ended, or belongs to another user
        return False


def _runs(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


if __name__ == "__main__":
    main(sys.argv[1])
