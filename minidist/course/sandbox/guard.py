"""Runs a learner's code inside a rank so that neither an accident nor a trick affects the next task.

Answers run only in ranks, never in the grading process. Whatever an answer patches, prints, exits or kills, the grading
process compares what came back using its own, untouched NumPy. Inside the rank, ``guarded``

- restores whatever the answer replaced in minidist, NumPy and Python, and reports it (restore.py);
- forbids the library's own answers (forbidden.py);
- refuses the processes that the answer starts (processes.py);
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
from minidist.course.sandbox.processes import no_processes
from minidist.course.sandbox.restore import restore, snapshot
from minidist.course.sandbox.violations import Exited, Tampering

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
        Tampering, LibraryAnswer, Forked, StartsProgram, Exited: for a rule violation.
    """
    before, outputs = snapshot(), (sys.stdout, sys.stderr)
    recursion = sys.getrecursionlimit()
    sys.stdout, sys.stderr = (_LimitedOutput(output, remarks) for output in outputs)
    try:
        with np.errstate(), forbidden_functions(forbidden), forbidden_files(forbidden), no_processes():
            yield
    except SystemExit as error:
        raise Exited(f"the answer ends the process: exit({error.code!r})") from error
    finally:
        sys.stdout, sys.stderr = outputs
        replaced = restore(before)
        sys.setrecursionlimit(recursion)
        if hasattr(signal, "alarm"):
            signal.alarm(0)
    if replaced:
        more = f" and {len(replaced) - NAMES} more" if len(replaced) > NAMES else ""
        raise Tampering(f"the answer replaces {', '.join(replaced[:NAMES])}{more}")


def threads_left(before: set[threading.Thread]) -> int:
    """How many threads run that did not run before, except those that carry out collectives."""
    left = [thread for thread in set(threading.enumerate()) - before if thread.name != "collectives"]
    for thread in left:
        with suppress(RuntimeError):
            thread.join(timeout=0.1)  # a thread that is about to end may do so
    return sum(thread.is_alive() for thread in left)


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
