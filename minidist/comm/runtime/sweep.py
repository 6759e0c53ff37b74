"""Removes what killed processes left behind: shared memory and temporary folders whose creator is gone.

A Cluster cleans up however it ends, unless nobody is left to do it. ``kill -9`` of all its processes leaves its
shared-memory segment, if it comes before the first run has begun on all ranks: after that the segment has no name. It
also leaves the folder with the socket of multiprocess's fork server, and ``kill -9`` of the parent alone the parent's
scratch folders. So each start of a Cluster first looks for such leftovers.

Segments and folders carry the name of their creator, the *owner*, such as ``24917-8813312-1f3a9c02``:

    24917       the process id
    8813312     when the process started, in clock ticks: ids are reused, but not with the same start
    1f3a9c02    the place where both are valid: a hash of the machine's boot and of the pid and time namespaces

A leftover is removed only if it certainly is one: it belongs to our user, its owner's place is ours, and no process has
that id and start. A container that shares /dev/shm with us has its own process ids and its own place, so what it
created stays. So does everything without an owner in its name.

Only Linux provides this information, in /proc. Elsewhere an owner is just a process id, and nothing is removed.
"""

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from multiprocess import process, util

PREFIX = "minidist-"
SHARED_MEMORY = "/dev/shm"
SEGMENT = re.compile(PREFIX + r"([0-9]{1,9}-[0-9]+-[0-9a-f]{8})-[0-9a-f]{6}")
MARK = re.compile(PREFIX + r"([0-9]{1,9}-[0-9]+-[0-9a-f]{8})")
SCRATCH = re.compile(PREFIX + r"([0-9]{1,9}-[0-9]+-[0-9a-f]{8})-\w{8}")  # tempfile draws the last eight
SHORT, LONGEST = "/tmp", 70  # characters: a socket's path may have 108, including the names that multiprocess adds
FOLDER, SOCKET = "pymp-", ("listener-", "sock-")  # how multiprocess's names begin; "sock-" from 3.13 on


def owner() -> str:
    """Return the owner for the names of what this process creates."""
    with suppress(OSError):
        if place := _place():
            return f"{os.getpid()}-{_start_of(os.getpid())}-{place}"
    return str(os.getpid())


def claim_temporary_folder() -> None:
    """Create multiprocess's folder for temporary files now, and mark it as this process's.

    A folder that exists already stays as it is: it may belong to the process that forked this one.
    """
    if process.current_process()._config.get("tempdir") is None:
        before = tempfile.tempdir
        with suppress(OSError):
            if len(tempfile.gettempdir()) > LONGEST and os.path.isdir(SHORT):
                tempfile.tempdir = SHORT  # the path of a socket would be too long
            Path(util.get_temp_dir(), PREFIX + owner()).touch()
        tempfile.tempdir = before


def remove_socket(path: str, user: int) -> None:
    """Remove the socket of a server that nobody uses any longer, and its folder if that belonged to its user alone.

    Args:
        user: the id of the process that started the server.
    """
    folder = os.path.dirname(path)
    with suppress(OSError):
        os.unlink(path)
        marks = list(map(MARK.fullmatch, os.listdir(folder)))
        if len(marks) == 1 and marks[0] and int(marks[0][1].split("-")[0]) == user:
            shutil.rmtree(folder)


@contextmanager
def scratch_folder(where: str | None = None) -> Iterator[str]:
    """Make a temporary folder for the ``with`` block. If this process is killed in it, the next sweep removes it.

    Args:
        where: the folder to make it in; None for the system's.
    """
    with tempfile.TemporaryDirectory(prefix=f"{PREFIX}{owner()}-", dir=where, ignore_cleanup_errors=True) as folder:
        yield folder


def sweep() -> None:
    """Remove the segments and the folders of processes that are gone. What cannot be removed stays."""
    with suppress(OSError):
        if _place():
            _sweep_segments(SHARED_MEMORY)
            for where in {tempfile.gettempdir(), SHORT}:
                with suppress(OSError):
                    _sweep_folders(where)


def _sweep_segments(where: str) -> None:
    for entry in os.scandir(where):
        if (match := SEGMENT.fullmatch(entry.name)) and _is_ours(entry) and _is_gone(match[1]):
            with suppress(OSError):  # another sweep was faster
                os.unlink(entry.path)


def _sweep_folders(where: str) -> None:
    for entry in os.scandir(where):
        if not (entry.name.startswith((FOLDER, PREFIX)) and entry.is_dir(follow_symlinks=False) and _is_ours(entry)):
            continue
        if (match := SCRATCH.fullmatch(entry.name)) and _is_gone(match[1]):
            shutil.rmtree(entry.path, ignore_errors=True)
            continue
        with suppress(OSError):
            names = os.listdir(entry.path)
            marks = [match for match in map(MARK.fullmatch, names) if match]
            sockets = [name for name in names if name.startswith(SOCKET)]
            if len(marks) == 1 and len(sockets) + 1 == len(names) and _is_gone(marks[0][1]):
                for name in [*sockets, marks[0][0]]:  # the mark last: an interrupted sweep can be repeated
                    os.unlink(os.path.join(entry.path, name))
                os.rmdir(entry.path)


def _is_ours(entry: os.DirEntry) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_uid == os.geteuid()
    except OSError:
        return False


def _is_gone(owner: str) -> bool:
    """Return whether an owner, a process, has certainly ended."""
    pid, start, place = owner.split("-")
    if place != _place():
        return False
    try:
        os.kill(int(pid), 0)  # signal 0 is not sent: the call only checks that the process exists
    except ProcessLookupError:
        return True
    except OSError:
        pass  # another user's process: the id may have been reused
    try:
        return _start_of(int(pid)) != start
    except OSError:
        return False


def _start_of(pid: int) -> str:
    """Return when a process started, in clock ticks since boot (man 5 proc: the 22nd field of ``stat``).

    It is read from the process's first thread. In its own ``/proc/PID/stat`` a process that QEMU emulates finds another
    start than other processes do, and they would take it for gone.
    """
    return stat_of(f"{pid}/task/{pid}")[19]


def stat_of(process: str) -> list[str]:
    """Return the fields of ``/proc/PROCESS/stat`` after the name, which may have spaces and brackets: the third and on.

    Raises:
        OSError: if the process has ended, or this is not Linux.
    """
    return Path(f"/proc/{process}/stat").read_text("utf-8").rpartition(")")[2].split()


def _place() -> str:
    """Return a hash of the place where our process ids and start times are valid; "" if it cannot be determined."""
    if sys.platform != "linux" or os.readlink("/proc/self") != str(os.getpid()):  # /proc shows another pid namespace
        return ""
    parts = [Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8"), os.readlink("/proc/self/ns/pid")]
    with suppress(FileNotFoundError):  # there are no time namespaces before Linux 5.6
        parts.append(os.readlink("/proc/self/ns/time"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:8]
