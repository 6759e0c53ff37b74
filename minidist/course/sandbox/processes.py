"""Refuses the processes that an answer starts: other programs do not start, and forks end at once."""

import os
import sys
from contextlib import contextmanager

from minidist.course.sandbox.violations import Forked, StartsProgram

try:
    import _posixsubprocess  # what multiprocessing starts its processes with, unheard by audit hooks
except ImportError:  # on Windows
    _posixsubprocess = None

# Python announces these to audit hooks: https://docs.python.org/3/library/audit_events.html
EVENTS = {"subprocess.Popen", "os.system", "os.posix_spawn", "os.spawn", "os.exec", "os.startfile", "pty.spawn"}

_refusing = False
_programs: list[str] = []  # the calls that were refused since the last reset
_forks = 0


@contextmanager
def no_processes():
    """Refuse processes inside the ``with`` block.

    Raises:
        StartsProgram, Forked: also at the end of the block, if the answer has caught the first exception.
    """
    global _refusing, _forks
    _programs.clear()
    _refusing, _forks = True, 0
    fork_exec = getattr(_posixsubprocess, "fork_exec", None)
    if fork_exec is not None:
        _posixsubprocess.fork_exec = lambda *_: _refuse("multiprocessing")
    try:
        yield
    finally:
        _refusing = False
        if fork_exec is not None:
            _posixsubprocess.fork_exec = fork_exec
    if _programs:
        raise _violation(_programs[0])
    if _forks:
        raise Forked("the answer starts processes with os.fork, which no task needs; they were ended")


def _refuse(call: str) -> None:
    _programs.append(call)
    raise _violation(call)


def _violation(call: str) -> StartsProgram:
    return StartsProgram(f"the answer starts a program with {call}, which no task needs")


def _audit(event: str, arguments: tuple) -> None:
    if _refusing and event in EVENTS:
        _refuse(event)


def _before_fork() -> None:
    global _forks
    _forks += _refusing


def _after_fork_in_child() -> None:
    if _refusing:
        os._exit(1)


sys.addaudithook(_audit)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)
