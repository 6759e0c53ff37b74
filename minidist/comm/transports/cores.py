"""The cores of a busy machine: when a waiting rank gives up its own, and clocks that leave out the time without one.

With more ranks than cores, the awaited rank may need this core: giving it up (``sched_yield``) is then the fastest way
on, and on an idle machine it costs next to nothing. But it is expensive next to a program that computes all the time.
To Linux, a task that yields has used up its time slice (``yield_task_fair`` in kernel/sched/fair.c), so other programs
run for theirs first, some milliseconds each, and the rank is charged for time in which it did nothing. A rank that
sleeps is charged nothing, and gets the core soon after it wakes.

No call tells a process which kind of machine it is on, but the length of its yields does. One long yield says little:
any process loses its core now and then. After several in a row, each as long as a time slice, the rank stops yielding
for many times that long; the next long yield renews the pause.

Linux may schedule by groups (a session, a container): a yield only gives way inside its own group. Programs of another
group take the core anyway, but not because of a yield, so most yields are short and the rank continues to yield.

Open MPI (``mpi_yield_when_idle``) and LLVM's OpenMP (``KMP_USE_YIELD=2``) yield where there are more ranks or threads
than cores, which they count. They do not see other programs.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from minidist.comm.runtime.sweep import stat_of

SHARED_SECONDS = 50e-6  # a yield takes longer only if another process then had the core
CROWDED_NANOSECONDS = 1_000_000  # and longer than this if it was one that does not wait as ranks do
IN_A_ROW = 5  # this number of such yields means a crowded core
FORGO = 50  # after such a yield, the rank does not yield for this multiple of its length
LONGEST_FORGONE = 1_000_000_000  # ns: during a yield the process may be stopped, or its machine suspended


class Core:
    """The core that a rank runs on, and what its yields have shown about it."""

    def __init__(self) -> None:
        self._long_yields = 0  # in a row
        self._crowded_until = 0  # on the clock of time.perf_counter_ns

    @property
    def crowded(self) -> bool:
        """Whether giving the core up would likely take long, so that a waiting rank should sleep instead."""
        return time.perf_counter_ns() < self._crowded_until

    def give_up(self) -> float:
        """Give the core up once; return for how many seconds it was gone."""
        before = time.perf_counter_ns()
        _yield()
        now = time.perf_counter_ns()
        self._long_yields = self._long_yields + 1 if now - before > CROWDED_NANOSECONDS else 0
        if self._long_yields >= IN_A_ROW:
            self._crowded_until = now + min(FORGO * (now - before), LONGEST_FORGONE)
        return (now - before) * 1e-9


_yield = getattr(os, "sched_yield", lambda: time.sleep(0))


class ComputeClock:
    """A clock that counts the seconds of the thread that made it, except those within ``paused``.

    On Linux, time in which the thread could have run but had no core does not count (``schedstat``: its run delay).
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        try:
            self._schedule = open("/proc/thread-self/schedstat", "rb", buffering=0)  # noqa: SIM115  kept open: read often
        except OSError:  # not Linux
            self._schedule = None
        self._waited = self._delayed_while_waiting = 0.0
        self._is_paused = False
        self._began, self._delay_before = self._look()

    def seconds(self) -> float:
        """Return the seconds so far."""
        now, delay = self._look()
        return now - self._began - (delay - self._delay_before) - self._waited

    def seconds_without_core(self) -> float:
        """Return the seconds so far in which the thread could have computed but had no core; 0 if that is not known."""
        return self._look()[1] - self._delay_before - self._delayed_while_waiting

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out the time of the block, in which the thread waits for others. On other threads, do nothing."""
        if self._is_paused or threading.get_ident() != self._thread:
            yield
            return
        self._is_paused, (began, earlier_delay) = True, self._look()
        try:
            yield
        finally:
            self._is_paused, (now, delay) = False, self._look()
            delayed = delay - earlier_delay
            self._waited += now - began - delayed
            self._delayed_while_waiting += delayed

    def count_wait(self, seconds: float, delay: float) -> None:
        """Count a wait that has just ended, during which the thread had no core for ``delay`` seconds.

        It is for short waits, which ``paused`` would prolong: reading the schedule takes longer than a small message.
        """
        if threading.get_ident() == self._thread:
            if self._schedule is None:
                delay = 0.0  # it is not known for the time outside waits either
            self._waited += seconds - delay
            self._delayed_while_waiting += delay

    def close(self) -> None:
        """Close the file that the delays are read from: they are 0 from now on."""
        if self._schedule is not None:
            self._schedule.close()
            self._schedule = None

    def _look(self) -> tuple[float, float]:
        """Return the time, and how long the thread has waited for a core: both in seconds, from an arbitrary start.

        The two belong together: no wait for a core falls between the readings.
        """
        if self._schedule is None:
            return time.perf_counter(), 0.0
        now, delay = 0.0, -1
        while True:
            earlier, delay = delay, int(os.pread(self._schedule.fileno(), 100, 0).split()[1])  # ns
            if delay == earlier:
                return now, delay * 1e-9
            now = time.perf_counter()


PATIENCE = 20  # a run ends after this many times its limit, however busy the machine is


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PatientClock:
    """A clock that counts the seconds of a run as an idle machine would.

    While no rank needs a core, the clock runs at normal speed: a sleep takes as long on any machine. While some ranks
    do, it advances by the share of the cores that they get. (Only on Linux; elsewhere it is a plain clock.)
    """

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._cores = cores()
        self._seconds = 0.0
        self._looked, (_, self._used) = time.monotonic(), self._look()

    def seconds(self) -> float:
        """Return the seconds so far. Call it regularly, because it samples what the ranks do."""
        now, (runnable, used) = time.monotonic(), self._look()
        passed = now - self._looked
        if runnable:
            share = (used - self._used) / min(runnable, self._cores)
            self._seconds += min(passed, max(share, passed / PATIENCE))
        else:
            self._seconds += passed
        self._looked, self._used = now, used
        return self._seconds

    def _look(self) -> tuple[int, float]:
        """Return the number of runnable ranks, and the CPU seconds that all of them have used."""
        runnable, ticks = 0, 0
        for pid in self._pids:
            try:
                fields = stat_of(str(pid))
            except OSError:
                continue
            runnable += fields[0] == "R"
            ticks += int(fields[11]) + int(fields[12])  # in user code, and in the kernel
        return runnable, ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0
