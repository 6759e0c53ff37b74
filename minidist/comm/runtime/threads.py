"""Ranks that are threads of one process and take turns: for debuggers, and where no process can be started.

They compute the same bits as processes, and send the same messages. Their limits: two never compute at the same time,
so nothing is faster on more ranks; none can be killed alone, or outlive another; and what a function changes in a
module changes for all of them, except what turns.py lists and what it patches with ``unittest.mock.patch``.
"""

import ctypes
import io
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minidist import turns
from minidist.comm.failures import describe_frame, users_frame
from minidist.comm.runtime.worker import STOP_SECONDS, RankProcess, serve
from minidist.comm.transports.shared_memory import Segment

_running = threading.Lock()
_prints = threading.local()  # the streams of a rank's thread, by their names in sys


class Thread(threading.Thread):
    """A thread with the attributes of a rank's process that the parent uses."""

    @property
    def pid(self) -> int:
        return os.getpid()

    @property
    def exitcode(self) -> int | None:
        return None if self.is_alive() else 0

    def kill(self) -> None:
        """Raise SystemExit in the thread as soon as it runs Python code again."""
        assert self.ident is not None  # it has started
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self.ident), ctypes.py_object(SystemExit))


class RankThread(RankProcess):
    """The parent's handle on a rank that is a thread."""

    def _start(self, segment: Segment, commands) -> None:
        self._segment = segment
        self.process = Thread(target=self._serve, args=(commands,), daemon=True, name=f"rank {self.number}")
        self.process.start()

    def _serve(self, commands) -> None:
        with commands:
            serve(self.number, self._segment.place, commands, _prints.__setattr__, thread=(id(self), self.number))

    def ask_where(self) -> None:
        """Do nothing: ``where`` looks at the thread itself."""

    def where(self, over: Callable[[], bool]) -> str:
        innermost = sys._current_frames().get(self.process.ident or 0)
        return "its end" if innermost is None else describe_frame(users_frame(innermost) or innermost)

    def ask_to_end(self, kill: bool) -> None:
        if kill:
            self._segment.abort()
        self.send("stop", None)

    def end(self) -> None:
        self.process.join(STOP_SECONDS)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(STOP_SECONDS)
        self.reports.close()


class PrintsOfThreads:
    """A stand-in for ``sys.stdout`` or ``sys.stderr``: a rank prints to its own stream, all else to the usual one."""

    def __init__(self, name: str) -> None:
        usual = getattr(sys, name)
        self._name, self._usual = name, io.StringIO() if usual is None else usual  # as in a program without a console

    def __getattr__(self, attribute: str):
        return getattr(getattr(_prints, self._name, self._usual), attribute)


@contextmanager
def run_of_threads() -> Iterator[None]:
    """Let ranks that are threads print, patch and take turns in the ``with`` block; then restore the process's values.

    Raises:
        RuntimeError: if another Cluster's threads run.
    """
    if not _running.acquire(blocking=False):
        raise RuntimeError(
            "ranks that are threads run one function at a time: wait until the other Cluster's has ended"
        )
    from unittest import mock  # takes a while to import

    def enter_as_own(self):
        turns.own(self.getter(), self.attribute)
        return enter(self)

    before, enter = (sys.stdout, sys.stderr), mock._patch.__enter__
    sys.stdout, sys.stderr = PrintsOfThreads("stdout"), PrintsOfThreads("stderr")
    mock._patch.__enter__ = enter_as_own
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before
        mock._patch.__enter__ = enter
        try:
            turns.end(STOP_SECONDS)
        finally:
            _running.release()
