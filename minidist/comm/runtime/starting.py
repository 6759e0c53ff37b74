"""Starting processes on one machine that inherit neither the user's script, nor Ctrl-C, nor a parent's processes."""

import atexit
import ctypes
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress

from multiprocess import (
    process,
    resource_tracker,
    set_forkserver_preload,  # pyright: ignore[reportAttributeAccessIssue]
)

from minidist.comm.runtime.sweep import claim_temporary_folder
from minidist.launched import launched

_hiding = threading.Lock()
rank_here = False  # whether this process is a rank

# From Python 3.12 on, a process that ends waits for its resource tracker, which ends when nobody holds its pipe any
# longer. A child that the user has forked holds it too, and may wait for this process in turn.
atexit.register(setattr, resource_tracker._resource_tracker, "_pid", None)
if hasattr(os, "register_at_fork"):  # a rank is forked while its parent holds the lock
    os.register_at_fork(after_in_child=_hiding._at_fork_reinit)  # pyright: ignore[reportAttributeAccessIssue]  # hidden


def check_alone() -> None:
    """Raise RuntimeError where each of several processes would start ranks: in a rank, or in a launcher's processes."""
    if rank_here:
        raise RuntimeError("this process is a rank and cannot start ranks: use new_group for a group of some ranks")
    found = launched()
    if found is not None and found.size > 1:
        raise RuntimeError(
            f"{found.by} has started this process as rank {found.rank} of {found.size} ({found.variables}), and each "
            "of them would start ranks of its own. Call minidist.init() for the world of all of them "
            "(docs/cluster.md), or start one process"
        )


FILES_OF_RANK, FILES_OF_START = 4, 9  # open here: pipes of each rank; and those of the server that forks the ranks


def check_open_files(ranks: int) -> None:
    """Raise RuntimeError if this process may not open the files that ``ranks`` more ranks need."""
    if sys.platform != "linux":
        return
    import resource

    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    needed = len(os.listdir("/proc/self/fd")) - 1 + FILES_OF_RANK * ranks + FILES_OF_START
    if limit != resource.RLIM_INFINITY and needed > limit:
        raise RuntimeError(
            f"{ranks} more ranks need {needed} open files, and this process may have {limit}: allow more "
            f"(ulimit -n {max(1024, needed)}), or start fewer ranks"
        )


def usual_start_method() -> str:
    """Return the default start method: MINIDIST_START_METHOD if set, else forkserver on Linux and spawn elsewhere."""
    return os.environ.get("MINIDIST_START_METHOD") or ("forkserver" if sys.platform == "linux" else "spawn")


def prepare_fork_server(*modules: str) -> None:
    """Have the server that forks ranks import what all of them run, and these modules, once it starts."""
    set_forkserver_preload(["minidist.comm.runtime.server", *modules])
    claim_temporary_folder()


@contextmanager
def script_hidden():
    """Hide the user's script from multiprocess while ranks start; it would import the script in each of them.

    Functions travel by value (dill), so no rank needs the script. A script without the line
    ``if __name__ == "__main__"`` would start ranks that start ranks.
    """
    with _hiding:
        main = sys.modules["__main__"]
        hidden = {name: main.__dict__.pop(name) for name in ("__file__", "__spec__") if name in main.__dict__}
        main.__spec__ = None
        try:
            yield
        finally:
            main.__dict__.update(hidden)


@contextmanager
def interrupts_held():
    """Block SIGINT and SIGTERM in this thread within the ``with`` block, and for good in processes started inside.

    Ctrl-C reaches every process of the terminal, and the signal that ends a job every process of its group. But the
    parent decides: it may save the run first. Signals that a thread blocks stay blocked in the processes it starts.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def leave_signals_to_parent() -> None:
    """Let a rank outlive SIGINT and SIGTERM, which ``interrupts_held`` has blocked so far."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: None)  # neither ignored nor blocked: what the rank starts can be ended
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


@contextmanager
def daemons_allowed():
    """Let a daemon, such as a worker of multiprocess's Pool, start ranks: they end with it, as its children should."""
    config = process.current_process()._config
    before = config.get("daemon")
    config["daemon"] = False
    try:
        yield
    finally:
        config["daemon"] = before


def forget_parents_processes() -> None:
    """Forget, in a child that the user forks with ``os.fork``, what multiprocess knows of its parent's processes.

    Otherwise the child takes them for its own: it ends the parent's ranks when it exits, and waits for the parent's
    fork server, which is not its child. Children that multiprocess forks by itself, such as ranks, lose nothing by it.
    """
    process._children.clear()  # it ends these when it exits
    process.current_process()._config.pop("tempdir", None)  # the parent removes this folder when it exits
    leave_fork_server().__init__()
    resource_tracker._resource_tracker._lock = threading.RLock()  # another thread may have held it


def leave_fork_server():
    """Close this process's end of the fork server's pipe, and return the server, which ends once nobody holds one."""
    from multiprocess import forkserver  # not on Windows

    server = forkserver._forkserver
    if server._forkserver_alive_fd is not None:
        with suppress(OSError):
            os.close(server._forkserver_alive_fd)
        server._forkserver_alive_fd = None
    return server


PR_SET_PDEATHSIG = 1  # from Linux's <sys/prctl.h>


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, on Linux. For use in a new child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
