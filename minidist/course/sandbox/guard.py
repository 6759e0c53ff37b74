"""Running a learner's code inside a rank, so that an accident or a trick there does not reach the next task.

Answers run in ranks only, never in the process that judges: whatever they patch, print, exit or kill, the judge
compares what came back with its own, untouched NumPy. Inside the rank ``guarded``

- puts back what was replaced in minidist, NumPy and Python, and says so (restore.py);
- closes the library's own answers (closed.py);
- ends processes that the answer forks, and says so;
- lets a limited amount of printing through.

This is no sandbox: code that means harm can undo all of it. docs/grading.md says how to add one.
"""

import io
import linecache
import os
import signal
import sys
import threading
import types
from contextlib import contextmanager, suppress

import numpy as np

from minidist.comm.failures import add_plumbing
from minidist.course.sandbox.forbidden import closed_files, closed_functions
from minidist.course.sandbox.restore import functions_now, put_back
from minidist.course.sandbox.violations import Exited, Forked, Tampering

add_plumbing(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # errors name the learner's lines, not ours
PRINTED_CHARACTERS = 20_000
NAMES = 5  # of replaced functions that are told


@contextmanager
def guarded(closed: tuple[str, ...], remarks: list[str]):
    """Run what stands within under the rules above. What is noticed, but does not fail the task, goes to ``remarks``.

    Raises:
        Tampering, LibraryAnswer, Forked, Exited: for a breach of the rules.
    """
    before, outputs, forks = functions_now(), (sys.stdout, sys.stderr), _forks.count
    recursion = sys.getrecursionlimit()
    _forks.forbidden = True
    sys.stdout, sys.stderr = (_Limited(output, remarks) for output in outputs)
    try:
        with np.errstate(), closed_functions(closed), closed_files(closed):
            yield
    except SystemExit as error:
        raise Exited(f"the answer ends the process: exit({error.code!r})") from error
    finally:
        _forks.forbidden = False
        sys.stdout, sys.stderr = outputs
        replaced = put_back(before)
        sys.setrecursionlimit(recursion)
        if hasattr(signal, "alarm"):
            signal.alarm(0)
    if replaced:
        more = f" and {len(replaced) - NAMES} more" if len(replaced) > NAMES else ""
        raise Tampering(f"the answer replaces {', '.join(replaced[:NAMES])}{more}")
    if _forks.count > forks:
        raise Forked("the answer starts processes with os.fork, which no task needs; they were ended")


def load(source, closed: tuple[str, ...], remarks: list[str]) -> types.ModuleType:
    """Run the text of a file of answers as a module, and return it."""
    found: list[types.ModuleType] = []
    try:
        with guarded((), remarks), closed_files(closed):
            found.append(run_file(source))
    except Tampering as error:  # it was put back, so what the file defines can be judged fairly
        remarks.append(f"{source.name}.py: {error}; it was put back")
    return found[0]


def run_file(source) -> types.ModuleType:
    """The module that the text of a file of answers makes, whether or not the file is still there."""
    module = types.ModuleType(source.name)
    module.__file__ = source.path
    linecache.cache[source.path] = (len(source.text), None, source.text.splitlines(keepends=True), source.path)
    before = sys.modules.get(source.name)
    sys.modules[source.name] = module  # while it runs: dataclasses look themselves up there
    try:
        exec(compile(source.text, source.path, "exec"), module.__dict__)
    finally:
        if before is None:
            sys.modules.pop(source.name, None)
        else:
            sys.modules[source.name] = before
    return module


def threads_left(before: set[threading.Thread]) -> int:
    """How many threads run that did not run before, besides those that carry collectives."""
    left = [thread for thread in set(threading.enumerate()) - before if thread.name != "collectives"]
    for thread in left:
        with suppress(RuntimeError):
            thread.join(timeout=0.1)  # one that is about to end may do so
    return sum(thread.is_alive() for thread in left)


class _Forks:
    """os.fork while an answer runs: the child ends at once, and the parent's rank is told."""

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


class _Limited(io.TextIOBase):
    """A stream that drops what goes beyond the limit."""

    def __init__(self, stream, remarks: list[str]) -> None:
        self._stream, self._remarks, self._left = stream, remarks, PRINTED_CHARACTERS

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._left > 0:
            self._stream.write(text[: self._left])
            if len(text) > self._left:
                self._stream.write(
                    f"\n[more than {PRINTED_CHARACTERS:,} characters were printed; the rest is dropped]\n"
                )
                self._remarks.append(f"printed more than {PRINTED_CHARACTERS:,} characters; the rest was dropped")
        self._left -= len(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()
