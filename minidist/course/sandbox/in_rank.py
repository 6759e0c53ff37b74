"""Runs a grader's function in a rank: loads the answers once, calls the function, and returns plain values."""

import ast
import copy
import importlib
import io
import linecache
import os
import sys
import threading
import types
from collections import deque
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from operator import attrgetter
from typing import Any

import numpy as np

from minidist import trace
from minidist.course.answers import Source
from minidist.course.sandbox.forbidden import Tampering
from minidist.course.sandbox.guard import guarded, threads_left
from minidist.course.sandbox.values import use_dtype, use_seed
from minidist.course.sandbox.watching import WatchedAnswers

NUMBERS = set(np.sctypeDict.values())  # NumPy's own types: a subclass could bring its own equality


@dataclass
class RankResult:
    """Result of a grader's function on one rank."""

    value: Any  # returned by the grader's function
    traffic: trace.Traffic  # of the whole call
    log: list  # the messages, for analysis/replay.py
    remarks: list[str]
    has_threads: bool = False  # whether the answer left threads running


@dataclass(frozen=True)
class Contract:
    """Rules for every call of a task's answers, whichever test makes it.

    Attributes:
        task: number of the task; all its calls on a rank share one load of the answers.
        forbidden: modules and functions of the library that the answers may not call, because they hold the solutions.
        shared: functions that may return arrays that they were lent.
        dtype: dtype of the numbers in this test; None for the test's own.
    """

    task: str = ""
    forbidden: tuple[str, ...] = ()
    shared: tuple[str, ...] = ()
    dtype: str | None = None


def run_in_rank(world, source: Source, contract: Contract, function: Callable, args: tuple) -> RankResult:
    remarks: list[str] = []
    _enter(os.path.dirname(source.path))
    threads = set(threading.enumerate())
    answers, is_new = _loaded(source, contract, remarks)
    use_dtype(contract.dtype)
    if is_new:
        _rehearse(world, answers, contract, function, copy.deepcopy(args))
    result = _run(world, answers, contract, function, args, remarks, seed=0)
    result.has_threads = bool(threads_left(threads))
    if result.has_threads:
        remarks.append("leaves threads running; they were ended")
    return result


def _rehearse(world, answers, contract: Contract, function: Callable, args: tuple) -> None:
    """Run once with other values after a load: the run that counts must not depend on an earlier call.

    Output of the rehearsal is shown only if it fails, since the run that counts prints it again.
    """
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            _run(world, answers, contract, function, args, [], seed=1)
    except BaseException:
        print(printed.getvalue(), end="")
        raise


def _run(
    world, answers, contract: Contract, function: Callable, args: tuple, remarks: list[str], seed: int
) -> RankResult:
    """Run the grader's function once."""
    answers.begin_run()
    use_seed(seed)
    before = world.traffic
    trace.start()
    try:
        with guarded(contract.forbidden, remarks):
            value = function(world, answers, *args)
            _assert_waited_for(world.transport)
    finally:
        log = trace.stop()
    sys.stdout.flush()
    return RankResult(plain(value), world.traffic - before, log, remarks)


def _assert_waited_for(transport) -> None:
    for label in (label for group in transport.groups for label in group.unwaited):
        raise AssertionError(f"an asynchronous collective is never waited for: {label}")
    for send in sorted(transport.unwaited, key=attrgetter("number")):
        raise AssertionError(
            f"an isend of {send.nbytes} bytes to rank {send.peer} is never waited for: until its wait returns, the "
            "message may still be read from its array"
        )


_latest: tuple[tuple, WatchedAnswers] | None = None  # the answers that this rank loaded last


def _loaded(source: Source, contract: Contract, remarks: list[str]) -> tuple[WatchedAnswers, bool]:
    """Return the answers and whether they were loaded just now: a task's calls share one load."""
    global _latest
    key = source, replace(contract, dtype=None)
    if _latest is not None and _latest[0] == key:
        return _latest[1], False
    _latest = None  # a load that fails is tried again
    answers = WatchedAnswers(load(source, contract.forbidden, remarks), contract.shared)
    _latest = key, answers
    return answers, True


def _enter(folder: str) -> None:
    """Make the answers' folder the current one. Create it again if an answer, perhaps on another rank, deletes it."""
    for _ in range(100):
        try:
            os.makedirs(folder, exist_ok=True)
            os.chdir(folder)
            return
        except OSError:
            continue


def plain(value) -> Any:
    """Return a value that consists only of numbers, strings and arrays: nothing else leaves a rank.

    A Fraction becomes a float, a range or a deque a list, and any kind of list, tuple or dict a plain one.

    Raises:
        TypeError: for any other type, which it names.
    """
    kind = type(value)
    if kind in (bool, int, float, complex, str, bytes, type(None)) or kind in NUMBERS:
        return value
    if kind is np.ndarray and value.dtype.kind in "biufcSU":
        return value
    if kind is Fraction:
        return float(value)
    if isinstance(value, tuple):
        return tuple(plain(item) for item in value)
    if isinstance(value, list | range | deque):
        return [plain(item) for item in value]
    if isinstance(value, set | frozenset):
        return {plain(item) for item in value}
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    raise TypeError(f"expected the answer to return numbers or arrays, got a {kind.__name__}")


def load(source: Source, forbidden: tuple[str, ...], remarks: list[str]) -> types.ModuleType:
    """Load a file of answers as a module, under the rules of ``guarded``.

    Whatever the file replaces while it loads is restored and noted in the remarks: its functions can still be judged
    fairly.
    """
    modules: list[types.ModuleType] = []
    for name in _compiled(source)[1]:  # now: importing a module of the library may call forbidden functions
        with suppress(ImportError):  # the file's own import reports it
            importlib.import_module(name)
    try:
        with guarded(forbidden, remarks):
            modules.append(run_file(source))
    except Tampering as error:
        remarks.append(f"{source.name}.py: {error}; it was restored")
    return modules[0]


def run_file(source: Source) -> types.ModuleType:
    """Run the text of a file of answers as a module and return it, whether or not the file still exists."""
    module = types.ModuleType(source.name)
    module.__file__ = source.path
    linecache.cache[source.path] = (len(source.text), None, io.StringIO(source.text).readlines(), source.path)
    before = sys.modules.get(source.name)
    sys.modules[source.name] = module  # a dataclass looks its module up while it is being defined
    try:
        exec(_compiled(source)[0], module.__dict__)
    finally:
        if before is None:
            sys.modules.pop(source.name, None)
        else:
            sys.modules[source.name] = before
    return module


@lru_cache(maxsize=1)  # a rank loads the same file for every call of a chapter
def _compiled(source: Source) -> tuple[types.CodeType, list[str]]:
    """Compile a file of answers; return its code and the names in its imports that begin with minidist."""
    tree = ast.parse(source.text, source.path)
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
    return compile(tree, source.path, "exec"), [name for name in names if name.split(".")[0] == "minidist"]
