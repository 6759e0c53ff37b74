"""A process that ends with its parent: not even SIGKILL to the parent, or a stop of the child, leaves it behind."""

import ctypes
import signal
import sys

PR_SET_PDEATHSIG = 1  # from Linux's <sys/prctl.h>


def end_with_parent() -> None:
    """Let the kernel kill this process when its parent ends, on Linux. For use in a new child."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
