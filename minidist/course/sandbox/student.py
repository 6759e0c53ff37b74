"""A learner's answers as a grader uses them: called on ranks, observed from outside."""

import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minidist import trace
from minidist.comm.failures import RankFailed
from minidist.course.answers import Source
from minidist.course.sandbox.guard import guarded, threads_left
from minidist.course.sandbox.loading import load
from minidist.course.sandbox.warm_ranks import WarmRanks

NUMBERS = set(np.sctypeDict.values())  # NumPy's own types: a subclass could bring its own equality
SECONDS = 10.0  # for one call on all its ranks; the solutions take milliseconds


@dataclass
class RankResult:
    """What one rank brought back from an answer."""

    value: object  # what the grader's function returned there
    traffic: trace.Traffic  # of the whole call
    log: list  # the messages, for analysis/replay.py
    remarks: list[str]
    has_threads: bool  # whether the answer left threads running there


class Student:
    """The answers of one chapter.

    Args:
        source: the file of answers.
        forbidden: modules and functions of the library that the answers may not call, because they hold the solutions.
        ranks: where the answers run.
    """

    def __init__(self, source: Source, forbidden: tuple[str, ...], ranks: WarmRanks) -> None:
        self.source, self.forbidden, self.ranks = source, forbidden, ranks
        self.remarks: list[str] = []

    def on_ranks(self, size: int, function: Callable, *args) -> list[RankResult]:
        """Run ``function(world, answers, *args)`` on ``size`` ranks; ``answers`` has the learner's functions.

        The function is the grader's own. It returns numbers, strings, arrays, or lists, tuples and dicts of those.

        Raises:
            RankFailed, Deadlock, TimeoutError: as ``Cluster.run``.
            AssertionError: if messages were sent that no rank received.
        """
        call = (self.source, self.forbidden, function, args)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*never received", RuntimeWarning)
            try:
                results = self.ranks(size).run(_in_rank, *call, timeout=SECONDS)
            except RuntimeWarning as leftover:
                raise AssertionError(str(leftover)) from None
            except RankFailed as error:
                if error.exitcode is not None:  # what ended one process may have ended idle ones too
                    self.ranks.close()
                raise
        if any(result.has_threads for result in results):
            self.ranks.close()
        for result in results:
            self.remarks += [remark for remark in result.remarks if remark not in self.remarks]
        return results

    def call(self, name: str, *args):
        """What the learner's function of that name returns for these arguments, on a single rank."""
        return self.on_ranks(1, lambda world, answers: getattr(answers, name)(*args))[0].value


def _in_rank(world, source: Source, forbidden: tuple[str, ...], function: Callable, args: tuple) -> RankResult:
    remarks: list[str] = []
    _enter(os.path.dirname(source.path))
    answers = load(source, forbidden, remarks)
    before, threads = world.traffic, set(threading.enumerate())
    trace.start()
    try:
        with guarded(forbidden, remarks):
            value = function(world, answers, *args)
    finally:
        log = trace.stop()
    sys.stdout.flush()
    left = threads_left(threads)
    if left:
        remarks.append("leaves threads running; they were ended")
    return RankResult(plain(value), world.traffic - before, log, remarks, bool(left))


def _enter(folder: str) -> None:
    """Make the answers' folder the current one. Create it again if an answer, perhaps on another rank, deletes it."""
    for _ in range(100):
        try:
            os.makedirs(folder, exist_ok=True)
            os.chdir(folder)
            return
        except OSError:
            continue


def plain(value):
    """The value, if it consists of numbers, strings and arrays only: nothing else leaves a rank.

    Raises:
        TypeError: naming any other type.
    """
    if type(value) in (bool, int, float, complex, str, bytes, type(None)) or type(value) in NUMBERS:
        return value
    if type(value) is np.ndarray and value.dtype.kind in "biufcSU":
        return value
    if type(value) in (list, tuple):
        return type(value)(plain(item) for item in value)
    if type(value) in (set, frozenset):
        return {plain(item) for item in value}
    if type(value) is dict:
        return {plain(key): plain(item) for key, item in value.items()}
    raise TypeError(f"expected the answer to return numbers or arrays, got a {type(value).__name__}")
