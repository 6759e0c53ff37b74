"""How long a rank has computed: time that it neither waited for other ranks nor for a core of its machine.

A slow rank makes all others wait for it, so the time of a step is the same on every rank. What differs is this.
"""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager


class ComputeClock:
    """Counts the seconds of the thread that made it, but for those within ``paused``.

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
        """The seconds so far."""
        now, delay = self._look()
        return now - self._began - (delay - self._delay_before) - self._waited

    def seconds_without_core(self) -> float:
        """The seconds so far in which the thread had something to compute, and no core; 0 where nobody can tell."""
        return self._look()[1] - self._delay_before - self._delayed_while_waiting

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it the thread waits for others. Of other threads' waits nothing is counted."""
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
        """Count a wait that has just ended, of which the thread had no core for ``delay`` seconds.

        For short waits, which ``paused`` would prolong: a look at the schedule takes longer than a small message.
        """
        if threading.get_ident() == self._thread:
            if self._schedule is None:
                delay = 0.0  # as nobody can tell it of the time outside waits
            self._waited += seconds - delay
            self._delayed_while_waiting += delay

    def _look(self) -> tuple[float, float]:
        """The time, and for how long the thread has waited for a core: both in seconds, from any beginning."""
        delay = 0
        if self._schedule is not None:
            delay = int(os.pread(self._schedule.fileno(), 100, 0).split()[1])  # ns
        return time.perf_counter(), delay * 1e-9
