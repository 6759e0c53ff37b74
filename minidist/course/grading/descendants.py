"""Finds and ends every process that this process has started, directly or not, also one that wants to stay.

On Linux this process becomes a *subreaper*: when a process ends, its children become children of the subreaper instead
of init's. So every descendant stays a descendant, whatever session, group or environment it has chosen. Other systems
have no subreapers. There, descendants are also known by a mark in their environment, which they inherit.
"""

import ctypes
import os
import sys
import time
from contextlib import suppress

import psutil

MARK = "MINIDIST_SUPERVISED"
PR_SET_CHILD_SUBREAPER = 36  # from Linux's <sys/prctl.h>
END_SECONDS = 30.0  # to end all; what cannot be killed, such as another user's process, must not be waited for longer
ROUND_SECONDS = 0.02


def adopt_orphans() -> None:
    """Make this process a subreaper, on Linux."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def running(mark: str) -> list[psutil.Process]:
    """All descendants that run now.

    Args:
        mark: the value of the variable ``MARK`` in the environment of the first of them.
    """
    found = psutil.Process().children(recursive=True)
    if sys.platform != "linux":
        found += [process for process in psutil.process_iter() if _has(mark, process) and process not in found]
    return [process for process in found if _runs(process)]


def end_all(mark: str) -> None:
    """Kill all descendants, again and again until none is left. Suspended first, they cannot start more."""
    deadline = time.monotonic() + END_SECONDS
    while ((processes := running(mark)) or _children_left()) and time.monotonic() < deadline:
        for action in (psutil.Process.suspend, psutil.Process.kill):
            for process in processes:
                with suppress(psutil.Error):
                    action(process)
        time.sleep(ROUND_SECONDS)


def _children_left() -> bool:
    """Collect the children that have ended; returns whether any is left.

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
