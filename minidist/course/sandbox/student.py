"""A learner's answers as a grader uses them: called on ranks, watched from outside."""

import os
import sys
import threading
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from minidist import trace
from minidist.comm.failures import RankFailed
from minidist.comm.runtime.launch import Cluster
from minidist.comm.runtime.warm import WarmClusters, preload
from minidist.course.answers import Source
from minidist.course.sandbox.guard import guarded, load, threads_left

NUMBERS = set(np.sctypeDict.values())  # NumPy's own, and no subclass that brings its own equality
START_SECONDS = 120.0  # for ranks to start
QUEUE_BYTES = 1 << 16  # between two ranks: containers often have little shared memory
SECONDS = 10.0  # that one call may take on all its ranks; the reference takes milliseconds
# What ranks of graders import. (A grader's function travels by the name of its module, and that imports pytest.)
PRELOADED = [
    "minidist.course.sandbox.guard",
    "minidist.course.authoring.assertions",
    "minidist.train.trainer",
    "pytest",
]


@dataclass
class Seen:
    """What one rank brought back from an answer."""

    value: object  # what the grader's function returned there
    traffic: trace.Traffic  # of the whole call
    log: list  # the messages, for analysis/replay.py
    remarks: list[str]
    spoiled: bool  # whether something of it still runs there


def start_server() -> None:
    """Have the server that ranks are forked from import what each of them needs: it takes longer than they do."""
    preload(*PRELOADED)


class WarmRanks(WarmClusters):
    """Clusters for answers to run on."""

    def __init__(self) -> None:
        super().__init__(_start)

    def __call__(self, size: int) -> Cluster:
        """The Cluster of that size, ready: however long a busy machine takes to start ranks, no answer pays for it."""
        cluster = super().__call__(size)
        cluster.run(_nothing, timeout=START_SECONDS)
        return cluster


def _start(size: int) -> Cluster:
    start_server()
    return Cluster(size, queue_bytes=QUEUE_BYTES)


def _nothing(world) -> None:
    """What ranks do first: they import what is not preloaded where they are not forked."""
    from minidist.course.authoring import assertions  # noqa: F401


class Student:
    """The answers of one chapter.

    Args:
        source: the file of answers.
        closed: modules of the library that the answers may not call, because they hold the solutions.
        ranks: where they run.
    """

    def __init__(self, source: Source, closed: tuple[str, ...], ranks: WarmRanks) -> None:
        self.source, self.closed, self.ranks = source, closed, ranks
        self.remarks: list[str] = []

    def on_ranks(self, size: int, function: Callable, *args) -> list[Seen]:
        """Run ``function(world, answers, *args)`` on so many ranks; ``answers`` has the learner's functions.

        The function is the grader's own and returns numbers, strings, arrays, or lists, tuples and dicts of those.

        Raises:
            RankFailed, Deadlock, TimeoutError: as for ``Cluster.run``.
            AssertionError: where messages were sent that nobody received.
        """
        call = (self.source, self.closed, function, args)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*never received", RuntimeWarning)
            try:
                found = self.ranks(size).run(_in_rank, *call, timeout=SECONDS)
            except RuntimeWarning as leftover:
                raise AssertionError(str(leftover)) from None
            except RankFailed as error:
                if error.exitcode is not None:  # whatever ended one process may have ended others that wait
                    self.ranks.close()
                raise
        if any(seen.spoiled for seen in found):
            self.ranks.close()
        for seen in found:
            self.remarks += [remark for remark in seen.remarks if remark not in self.remarks]
        return found

    def call(self, name: str, *args):
        """What the learner's function of that name returns for these arguments, on a rank of its own."""
        return self.on_ranks(1, lambda world, answers: getattr(answers, name)(*args))[0].value


def _in_rank(world, source: Source, closed: tuple[str, ...], function: Callable, args: tuple) -> Seen:
    remarks: list[str] = []
    _enter(os.path.dirname(source.path))
    answers = load(source, closed, remarks)
    before, threads = world.traffic, set(threading.enumerate())
    trace.start()
    try:
        with guarded(closed, remarks):
            value = function(world, answers, *args)
    finally:
        log = trace.stop()
    sys.stdout.flush()
    left = threads_left(threads)
    if left:
        remarks.append("leaves threads running; they were ended")
    return Seen(plain(value), world.traffic - before, log, remarks, bool(left))


def _enter(folder: str) -> None:
    """Make the folder of the answers the current one, anew where an answer has deleted it, on another rank just now."""
    for _ in range(100):
        try:
            os.makedirs(folder, exist_ok=True)
            os.chdir(folder)
            return
        except OSError:
            continue


def plain(value):
    """The value, if it is made of numbers, strings and arrays alone: nothing else is let out of a rank.

    Raises:
        TypeError: naming what it is otherwise.
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
    raise TypeError(f"the answer returns a {type(value).__name__}, where numbers or arrays are asked for")
