"""Runs a learner's code inside a rank so that neither an accident nor a trick affects the next task.

Answers run only in ranks, never in the grading process. Whatever an answer patches, prints, exits or kills, the grading
process compares what came back using its own, untouched NumPy. Inside the rank, ``guarded``

- restores whatever the answer replaced in minidist, NumPy and Python, and reports it (restore.py);
- forbids the library's own answers (forbidden.py);
- ends processes that the answer forks, and reports them;
- limits how much the answer can print.

This is not a security sandbox: malicious code can undo all of it. docs/grading.md explains how to add one.
"""

import io
import os
import signal
import sys
import threading
from contextlib import contextmanager, suppress

import numpy as np

from minidist.comm.failures import add_plumbing
from minidist.course.sandbox.forbidden import forbidden_files, forbidden_functions
from minidist.course.sandbox.restore import restore, snapshot
from minidist.course.sandbox.violations import Exited, Forked, Tampering

# Error locations skip the files of this package, so that they name the learner's lines.
add_plumbing(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PRINTED_CHARACTERS = 20_000
NAMES = 5  # how many replaced functions a message names


@contextmanager
def guarded(forbidden: tuple[str, ...], remarks: list[str]):
    """Run the ``with`` block under the rules above.

    Args:
        forbidden: modules ("module") or functions and classes ("module:name") that the answer may not call.
        remarks: receives what was noticed but does not fail the task.

    Raises:
        Tampering, LibraryAnswer, Forked, Exited: for a rule violation.
    """
    before, outputs, forks = snapshot(), (sys.stdout, sys.stderr), _forks.count
    recursion = sys.getrecursionlimit()
    _forks.forbidden = True
    sys.stdout, sys.stderr = (_LimitedOutput(output, remarks) for output in outputs)
    try:
        with np.errstate(), forbidden_functions(forbidden), forbidden_files(forbidden):
            yield
    except SystemExit as error:
        raise Exited(f"the answer ends the process: exit({error.code!r})") from error
    finally:
        _forks.forbidden = False
        sys.stdout, sys.stderr = outputs
        replaced = restore(before)
        sys.setrecursionlimit(recursion)
        if hasattr(signal, "alarm"):
            signal.alarm(0)
    if replaced:
        more = f" and {len(replaced) - NAMES} more" if len(replaced) > NAMES else ""
        raise Tampering(f"the answer replaces {', '.join(replaced[:NAMES])}{more}")
    if _forks.count > forks:
        raise Forked("the answer starts processes with os.fork, which no task needs; they were ended")


def threads_left(before: set[threading.Thread]) -> int:
    """How many threads run that did not run before, except those that carry out collectives."""
    left = [thread for thread in set(threading.enumerate()) - before if thread.name != "collectives"]
    for thread in left:
        with suppress(RuntimeError):
            thread.join(timeout=0.1)  # a thread that is about to end may do so
    return sum(thread.is_alive() for thread in left)


class _Forks:
    """Handles os.fork while an answer runs: the child ends at once, and the parent counts it."""

    def __init__(self) -> None:
        self.forbidden, self.count = False, 0
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(before=self._before, after_in_child=self._in_child)

    def _before(self) -> None:
        self.count += self.forbidden

    def _in_child(self) -> None:
        if self.forbidden:
            os._exit(1)


_forks = _Forks()


class _LimitedOutput(io.TextIOBase):
    """A stream that drops everything beyond ``PRINTED_CHARACTERS``."""

    def __init__(self, stream, remarks: list[str]) -> None:
        self._stream, self._remarks, self._left = stream, remarks, PRINTED_CHARACTERS

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._left > 0:
            self._stream.write(text[: self._left])
            if len(text) > self._left:
                self._stream.write(f"\n[printed more than {PRINTED_CHARACTERS:,} characters; the rest was dropped]\n")
                self._remarks.append(f"printed more than {PRINTED_CHARACTERS:,} characters; the rest was dropped")
        self._left -= len(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
