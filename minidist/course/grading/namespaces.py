"""A /dev/shm of a process' own: what it and its children write there is gone when the last of them has ended."""

import ctypes
import os
import subprocess
import sys
from functools import cache

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000  # from Linux's <linux/sched.h>
MS_NOSUID, MS_NODEV, MS_REC, MS_PRIVATE = 2, 4, 1 << 14, 1 << 18  # from <linux/mount.h>


@cache
def can_have_own_shared_memory() -> bool:
    """Whether the system allows it: tried in a process of its own, since half of it would be worse than none."""
    try:
        return sys.platform == "linux" and subprocess.run("true", preexec_fn=have_own_shared_memory).returncode == 0
    except (OSError, subprocess.SubprocessError):
        return False


def have_own_shared_memory() -> None:
    """Mount an empty /dev/shm that this process and its children alone see. For use in a new process.

    Without the right to mount, it takes a user namespace, in which it keeps its user and group (man 7 user_namespaces).

    Raises:
        OSError: if the system does not allow it.
    """
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        _check(libc.unshare(CLONE_NEWNS | CLONE_NEWUSER))
        for file, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{file}", "w") as written:
                written.write(text)
    _check(libc.mount(b"none", b"/", None, MS_REC | MS_PRIVATE, None))
    _check(libc.mount(b"minidist", b"/dev/shm", b"tmpfs", MS_NOSUID | MS_NODEV, b"mode=1777"))


def _check(status: int) -> None:
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
