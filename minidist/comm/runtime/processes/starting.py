"""What must not reach the processes that start: the user's script, and Ctrl-C."""

import os
import signal
import sys
import threading
from contextlib import contextmanager

_hiding = threading.Lock()


def _renew_lock() -> None:
    global _hiding
    _hiding = threading.Lock()


if hasattr(os, "register_at_fork"):  # a rank is forked while its parent holds the lock
    os.register_at_fork(after_in_child=_renew_lock)


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
    """Hold Ctrl-C back from this thread until the end of the ``with`` block, and from what starts inside for good.

    Ctrl-C reaches every process of the terminal. One that is still importing would print a traceback, though it is the
    parent that decides. What a thread blocks stays blocked in the processes that it starts.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
