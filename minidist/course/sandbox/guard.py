"""Runs a learner's code inside a rank so that neither an accident nor a trick affects the next task.

Answers run only in ranks, never in the grading process. Whatever an answer patches, prints, exits or kills, the grading
process compares what came back using its own, untouched NumPy. Inside the rank, ``guarded``

- restores whatever the answer replaced in minidist, NumPy and Python, and reports it;
- forbids the library's own answers, and the processes that the answer starts (forbidden.py);
- limits how much the answer can print.

This is not a security sandbox: malicious code can undo all of it. docs/grading.md explains how to add one.
"""

import builtins
import io
import math
import operator
import os
import random
import signal
import sys
import threading
import time
import tracemalloc
import types
from builtins import all, isinstance, list, map, setattr, vars  # noqa: UP029 - an answer may replace them
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from minidist.comm.failures import add_plumbing
from minidist.course.sandbox.forbidden import Exited, Tampering, forbidden_files, forbidden_functions, no_processes

# Error locations skip the files of this package, so that they name the learner's lines.
add_plumbing(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PRINTED_CHARACTERS = 20_000
NAMES = 5  # how many replaced functions a message names
MODULES = (builtins, math, os, random, sys, threading, time, tracemalloc, np, np.random, np.linalg)  # and minidist's
SYS_MODULES = "sys.modules"  # stands for that dict among the owners of names


@contextmanager
def guarded(forbidden: tuple[str, ...], remarks: list[str]):
    """Run the ``with`` block under the rules above.

    Args:
        forbidden: modules ("module") or functions and classes ("module:name") that the answer may not call.
        remarks: list that receives observations that do not fail the task.

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
    """Return how many threads run that did not run before, except those that carry out collectives."""
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


Snapshot = dict[types.ModuleType | type | str, dict[str, Any]]  # owner -> its names -> their values

_snapshot: Snapshot = {}
_known: set[str] = set()  # names of the modules that have been looked at


def snapshot() -> Snapshot:
    """Return every function and class of minidist, of its classes, and of ``MODULES``.

    Whatever an answer replaces is restored, so a snapshot stays valid; modules that were imported since are added.
    """
    if not _snapshot:
        _snapshot[SYS_MODULES] = {name: sys.modules[name] for name in ("numpy", "minidist")}
        for module in MODULES:
            _add(module)
    for name in list(sys.modules):
        if name not in _known:
            _known.add(name)
            if name.split(".")[0] == "minidist":
                _add(sys.modules[name])
    return _snapshot


def _add(module: types.ModuleType) -> None:
    _snapshot[module] = {name: value for name, value in list(vars(module).items()) if callable(value)}
    for value in list(_snapshot[module].values()):
        if isinstance(value, type) and value.__module__.split(".")[0] == "minidist" and value not in _snapshot:
            _snapshot[value] = {
                name: member
                for name, member in vars(value).items()
                if callable(member) or isinstance(member, property | staticmethod | classmethod)
            }


def restore(before: Snapshot) -> list[str]:
    """Restore everything that differs from a snapshot; return the names of what was replaced."""
    replaced = []
    for owner, values in before.items():
        now = sys.modules if isinstance(owner, str) else vars(owner)
        if all(map(operator.is_, map(now.get, values), values.values())):  # quick, and nearly always so
            continue
        for name in [name for name, value in values.items() if now.get(name) is not value]:
            if isinstance(owner, str):
                sys.modules[name] = values[name]
                replaced.append(name)
            else:
                setattr(owner, name, values[name])
                replaced.append(f"{_name(owner)}.{name}")
    return replaced


def _name(owner: types.ModuleType | type) -> str:
    return owner.__name__ if not isinstance(owner, type) else f"{owner.__module__}.{owner.__qualname__}"
