"""Starts ranks, runs functions on them, and ends them whatever happens.

A rank is a process; it stands for one GPU and the process that drives it (what ``torchrun`` starts). The parent owns
everything that is shared: it creates and unlinks the shared memory, notices the first failure, and ends the others.
"""

import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable
from contextlib import nullcontext, suppress
from itertools import permutations
from math import inf
from operator import index

from multiprocess import get_all_start_methods  # pyright: ignore[reportAttributeAccessIssue]

from minidist.comm.failures import Deadlock, Hang, RankFailed, describe_exit, users_frame
from minidist.comm.runtime import serialization
from minidist.comm.runtime.deadlock import DeadlockWatch, describe
from minidist.comm.runtime.starting import (
    check_alone,
    check_open_files,
    daemons_allowed,
    forget_parents_processes,
    interrupts_held,
    prepare_fork_server,
    script_hidden,
    usual_start_method,
)
from minidist.comm.runtime.sweep import sweep
from minidist.comm.runtime.threads import RankThread, run_of_threads
from minidist.comm.runtime.worker import LOOK_SECONDS, RankProcess, end_ranks, wait_for_reports
from minidist.comm.transports.cores import PatientClock
from minidist.comm.transports.shared_memory import MAX_RANKS, Segment
from minidist.comm.transports.transport import BLOCKED, RUNNING

GRACE_SECONDS = 2.0  # after a failure, for the other ranks to say where they are; as an idle machine would count them
ANSWER_SECONDS = 10.0  # the same for ranks that are to be kept: one that computes hears of it at its next message


def launch(fn: Callable, world_size: int, *args, timeout: float | None = None, start_method: str | None = None) -> list:
    """Start ``world_size`` ranks, run ``fn(world, *args)`` on each, and return their results in rank order.

    Args:
        fn: any function, including a lambda or one defined in a notebook cell.
        timeout: seconds after which the run ends; None for no limit. On Linux, time that its ranks spend waiting for a
            core of a busy machine hardly counts.
        start_method: "forkserver", "spawn" or "fork"; "thread" for ranks that are threads of this process and take
            turns (threads.py). None for the value of the environment variable MINIDIST_START_METHOD, or else forkserver
            on Linux, spawn elsewhere.

    Raises:
        RankFailed: when a rank raises an exception, exits or is killed.
        Deadlock: when ranks wait for each other, so that none can continue.
        TimeoutError: when the time is up; the message says what each rank was doing.
    """
    with Cluster(world_size, start_method=start_method) as cluster:
        return cluster.run(fn, *args, timeout=timeout)


class Cluster:
    """Ranks that stay warm between calls of ``run``. A context manager.

    A failed run ends the ranks, and the next run starts new ones. With ``keep_survivors`` it only ends the ranks that
    died or do not answer. The others keep what they hold in ``world.kept``, as a machine keeps its memory when another
    machine fails. ``regroup`` sets the number of ranks with which the next run continues.

    Args:
        world_size: the number of ranks, 1 to 64.
        start_method: as for ``launch``.
        queue_bytes: capacity of each queue (one per ordered pair of ranks), a multiple of 64, at least 1024.
        keep_survivors: whether ranks outlive the failure of another.

    Raises:
        ValueError: for an argument out of these ranges, or ``keep_survivors`` for ranks that are threads.
        RuntimeError: in a rank, or in one of several processes of a launcher.
    """

    def __init__(
        self,
        world_size: int,
        start_method: str | None = None,
        queue_bytes: int | None = None,
        keep_survivors: bool = False,
    ) -> None:
        self.world_size = _checked_size(world_size)
        check_alone()
        methods = [*get_all_start_methods(), "thread"]
        start_method = start_method or usual_start_method()
        if start_method not in methods:
            raise ValueError(f"start_method {start_method!r} is not available here; choose from {', '.join(methods)}")
        if queue_bytes is not None and (queue_bytes < 1024 or queue_bytes % 64):
            raise ValueError(f"queue_bytes must be a multiple of 64, at least 1024, got {queue_bytes}")
        if keep_survivors and start_method == "thread":
            raise ValueError("ranks that are threads of one process end together: keep_survivors needs processes")
        self._method, self._queue_bytes, self._keep_survivors = start_method, queue_bytes, keep_survivors
        self._ranks: list[RankProcess] = []
        self._segment: Segment  # of the last start
        self.is_warm = False  # whether all ranks are there, with a segment that no failed run has used
        self._end = weakref.finalize(self, lambda: None)
        self._closed = False
        self._running = threading.Lock()

    def __enter__(self) -> "Cluster":
        self._start()
        return self

    def __exit__(self, *_) -> None:
        self.close()

    @property
    def survivors(self) -> list[int]:
        """The ranks that outlived the run that failed, by their numbers in it; all ranks if no run has failed."""
        return [rank.number for rank in self._ranks]

    def regroup(self, world_size: int, without: Collection[int] = ()) -> None:
        """Give the next run ``world_size`` ranks: the survivors in their order, then new ones.

        Args:
            without: survivors to end because they are no longer relied on. Those beyond ``world_size`` end too.
        """
        world_size = _checked_size(world_size)
        staying = [rank for rank in self._ranks if rank.number not in without][:world_size]
        self._end_all_but(staying)
        self.world_size = world_size

    def close(self) -> None:
        """End the ranks and free the shared memory."""
        self._closed = True
        self._stop(kill=False)

    def run(
        self,
        fn: Callable,
        *args,
        timeout: float | None = None,
        patience: float | None = None,
        on_report: Callable[[int, object], None] | None = None,
    ) -> list:
        """Run ``fn(world, *args)`` on every rank; see ``launch``.

        Args:
            patience: seconds, counted as for ``timeout``, after which the run ends if no rank has reported anything;
                None for no limit.
            on_report: ``on_report(rank, thing)`` is called in the parent, during the run, for each
                ``world.report(thing)`` of a rank.

        Raises:
            Hang: when the patience is over; it names the ranks that did not wait for others.
            RuntimeError: when the cluster is closed, belongs to another process, or is in a run already.
        """
        if not callable(fn):
            raise TypeError(f"the first argument must be a function fn(world, ...), got {fn!r}")
        if self._closed:
            raise RuntimeError("this Cluster is closed; make a new one, or call run inside its with block")
        if self._ranks and self._owner != os.getpid():
            raise RuntimeError(
                f"the ranks of this Cluster belong to process {self._owner}, from which this process was "
                "forked, and answer only that process; make a new Cluster here, or call run there"
            )
        if not self._running.acquire(blocking=False):
            raise RuntimeError(
                "this Cluster is running a function already; use a second Cluster to run another at the same time"
            )
        try:
            self._on_report = on_report or (lambda rank, thing: None)
            with run_of_threads() if self._method == "thread" else nullcontext():
                return self._run(fn, args, timeout, patience)
        finally:
            self._running.release()

    def _run(self, fn: Callable, args: tuple, timeout: float | None, patience: float | None) -> list:
        function = serialization.dumps((fn, args), "the function or an argument")
        payload = serialization.dumps(((sys.path, os.getcwd()), function))
        self._start()
        try:
            for line in self._segment.status:  # a rank that has not started yet must not count as finished
                line.write(RUNNING, 0, 0, 0)
            for rank in self._ranks:
                rank.send("run", payload)
            return self._collect(timeout, patience)
        except (RankFailed, Deadlock, Hang):
            kept = self._answered if self._keep_survivors else ()
            self._end_all_but([rank for rank in self._ranks if rank.number in kept])
            raise
        except BaseException:  # KeyboardInterrupt too
            self._stop(kill=True)
            raise

    # Starting and stopping

    def _start(self) -> None:
        if self.is_warm:
            return
        sweep()
        check_open_files(self.world_size - len(self._ranks))
        self._segment = Segment(self.world_size, self._queue_bytes, private=self._method == "thread")
        ranks = self._ranks
        # the ranks end even if the Cluster is dropped, or Python exits, without close()
        self._owner = os.getpid()
        self._end.detach()
        self._end = weakref.finalize(self, end_ranks, ranks, self._segment, True, self._owner)
        try:
            for number, survivor in enumerate(ranks):
                survivor.regroup(number, self._segment)
            if self._method == "forkserver":  # its server imports NumPy once, for all ranks
                prepare_fork_server()
            with script_hidden(), interrupts_held(), daemons_allowed():
                for number in range(len(ranks), self.world_size):
                    rank = RankThread if self._method == "thread" else RankProcess
                    ranks.append(rank(self._method, number, self._segment))
        except BaseException:
            self._end()
            raise
        self.is_warm = True

    def _stop(self, kill: bool) -> None:
        if self._ranks:
            end_ranks(self._ranks, self._segment, kill, self._owner)
            self._end.detach()
        self._ranks, self.is_warm = [], False

    def _end_all_but(self, staying: list[RankProcess]) -> None:
        """End all other ranks. Those that stay need a new segment: in the old one a message may be half written."""
        if not staying:
            self._stop(kill=True)
            return
        leaving = [rank for rank in self._ranks if rank not in staying]
        self._ranks[:] = staying  # the list that the finalizer has
        end_ranks(leaving, self._segment, True, self._owner)
        self.is_warm = False

    # Waiting for the results

    def _collect(self, timeout: float | None, patience: float | None) -> list:
        # numbers of ranks: those that reported how their part ended, those that are gone, those that hang
        self._answered, self._died, self._hopeless = set(), set(), set()
        timeout, patience = (inf if limit is None else limit for limit in (timeout, patience))
        clock = self._clock(range(self.world_size)) if min(timeout, patience) < inf else lambda: 0.0
        heard, silent_since = False, 0.0  # whether a rank has reported since the last look; on the clock
        results: list = [None] * self.world_size
        pending = dict(enumerate(self._ranks))
        unreceived = False
        watch = DeadlockWatch(lambda: [line.read() for line in self._segment.status], self._clock)
        looked = time.monotonic()
        while pending:
            for rank in wait_for_reports(pending.values(), LOOK_SECONDS):
                kind, content = rank.receive()
                heard = True
                if kind == "done":
                    self._answered.add(rank.number)
                    result, leftover = content
                    results[rank.number] = result
                    unreceived |= leftover
                    del pending[rank.number]
                elif kind == "attached" and all(rank.attached for rank in self._ranks):
                    self._segment.unlink()
                elif kind == "report":
                    self._on_report(rank.number, content)
                elif kind in ("failed", "gone", "aborted"):
                    raise self._failure(rank, kind, content, pending)
            if time.monotonic() - looked >= LOOK_SECONDS:
                for rank in pending.values():
                    if rank.has_died_silently:
                        raise self._failure(rank, "gone", rank.process.exitcode, pending)
                looked = time.monotonic()
                seconds = clock()
                if heard:
                    heard, silent_since = False, seconds
                over, hangs = seconds > timeout, seconds - silent_since > patience
                if watch.look() or ((over or hangs) and watch.stuck):
                    raise self._deadlock(watch.stuck, watch.statuses, pending)
                if over:
                    raise TimeoutError(self._describe_run(f"the run did not end within {timeout:g} s", pending)[0])
                if hangs:
                    raise self._hang(patience, watch.statuses, pending)
        if unreceived or any(self._segment.queue(*pair).unread for pair in permutations(range(self.world_size), 2)):
            self._warn_of_leftovers()
        for number, result in enumerate(results):
            try:
                results[number] = serialization.loads(result)
            except Exception as error:
                summary = f"its result cannot be unpickled here: {type(error).__name__}: {error}"
                raise RankFailed(f"rank {number} of {self.world_size} failed: {summary}", number, summary) from error
        return results

    def _clock(self, ranks: Iterable[int]) -> Callable[[], float]:
        return PatientClock([self._ranks[rank].process.pid for rank in ranks]).seconds

    def _deadlock(self, stuck: set[int], statuses: list, pending: dict[int, RankProcess]) -> Deadlock:
        answers = self._abort(pending)
        waiting = {rank: answers.get(rank, "a wait that it did not describe") for rank in stuck}
        return Deadlock(describe(stuck, statuses, waiting), waiting)

    def _hang(self, patience: float, statuses: list, pending: dict[int, RankProcess]) -> Hang:
        culprits = tuple(number for number in sorted(pending) if statuses[number].state != BLOCKED)
        self._hopeless = set(culprits)
        one = len(culprits) == 1
        who = f"{_name_ranks(culprits, 'hangs', 'hang')}: {'it waits' if one else 'they wait'} for no other, and "
        silence = f"no rank has reported anything for {patience:g} s"
        message, doing = self._describe_run((who if culprits else "") + silence, pending)
        return Hang(message, culprits, doing)

    def _describe_run(self, why: str, pending: dict[int, RankProcess]) -> tuple[str, dict[int, str]]:
        """End the run; return an error's message, and what each rank did, in words."""
        for rank in pending.values():
            rank.ask_where()
        clock = self._clock(pending)
        doing = {number: f"at {rank.where(lambda: clock() > GRACE_SECONDS)}" for number, rank in pending.items()}
        doing |= {number: f"in {text}" for number, text in self._abort(pending).items()}
        doing = dict(sorted(doing.items()))
        return "\n".join([f"{why}:", *(f"  rank {number} is {text}" for number, text in doing.items())]), doing

    def _failure(self, rank: RankProcess, kind: str, content, pending: dict[int, RankProcess]) -> RankFailed:
        """Tell the other ranks to give up; return the error of a run in which ``rank`` failed first."""
        del pending[rank.number]
        (self._died if kind == "gone" else self._answered).add(rank.number)
        waiting = self._abort(pending)
        if kind == "gone":
            exitcode, summary, own_traceback = content, describe_exit(content), ""
        elif kind == "aborted":  # although nobody has ended the run
            exitcode, summary, own_traceback = None, f"Aborted: {content}", ""
        else:
            exitcode, (summary, own_traceback) = None, content
        message = f"rank {rank.number} of {self.world_size} " + (summary if kind == "gone" else f"failed: {summary}")
        if own_traceback:
            message += f"\n\nrank {rank.number}'s own traceback:\n{own_traceback.rstrip()}"
        if pending:
            message += f"\n\n{_name_ranks(pending)} ended because of it:"
            message += "".join(
                f"\n  rank {number} was " + (f"in {waiting[number]}" if number in waiting else "computing")
                for number in pending
            )
        ranks = (rank.number, *sorted(self._died - {rank.number}))
        return RankFailed(message, rank.number, summary, own_traceback, exitcode, ranks)

    def _abort(self, pending: dict[int, RankProcess]) -> dict[int, str]:
        """Tell the other ranks to give up; return what each waiting rank waits for."""
        self._segment.abort()
        waiting: dict[int, str] = {}
        silent = dict(pending)
        blocked = {number for number in pending if self._segment.status[number].read().state == BLOCKED}
        clock = self._clock(pending)

        def limit() -> float:
            if self._keep_survivors and silent.keys() - self._hopeless:
                return ANSWER_SECONDS
            return GRACE_SECONDS if blocked & silent.keys() else LOOK_SECONDS

        # a blocked rank answers at once; a computing one may block soon, or never
        while silent and clock() < limit():
            for rank in wait_for_reports(silent.values(), LOOK_SECONDS):
                kind, content = rank.receive()
                if kind == "aborted":
                    waiting[rank.number] = content
                elif kind == "report":
                    self._on_report(rank.number, content)
                if kind not in ("attached", "print", "report"):
                    (self._died if kind == "gone" else self._answered).add(rank.number)
                    del silent[rank.number]
        return waiting

    def _warn_of_leftovers(self) -> None:
        frame = users_frame(sys._getframe()) or sys._getframe()  # none is the user's in a command
        place = frame.f_code.co_filename, frame.f_lineno
        for rank in self._ranks:
            rank.send("leftovers", None)
        for rank in self._ranks:
            kind = None
            while kind not in ("leftovers", "gone"):
                kind, content = rank.receive()
            for line in content if kind == "leftovers" else ():
                warnings.warn_explicit(line, RuntimeWarning, *place)


def _checked_size(world_size: int) -> int:
    with suppress(TypeError):  # raised for anything but a whole number; NumPy's integers count as such
        if not isinstance(world_size, bool) and 1 <= index(world_size) <= MAX_RANKS:
            return index(world_size)
    raise ValueError(f"world_size must be a whole number from 1 to {MAX_RANKS}, got {world_size!r}")


def _name_ranks(ranks, one: str = "was", more: str = "were") -> str:
    """Return 'rank 2 was', or 'ranks 0, 2 were'."""
    return f"rank {next(iter(ranks))} {one}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))} {more}"


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=forget_parents_processes)
