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
        self._waited = 0.0
        self._is_paused = False
        self._began = self._now()

    def seconds(self) -> float:
        """The seconds so far."""
        return self._now() - self._began - self._waited

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Within it the thread waits for others. Of other threads' waits nothing is counted."""
        if self._is_paused or threading.get_ident() != self._thread:
            yield
            return
        self._is_paused, before = True, self._now()
        try:
            yield
        finally:
            self._is_paused = False
            self._waited += self._now() - before

    def _now(self) -> float:
        delay = 0
        if self._schedule is not None:
            delay = int(os.pread(self._schedule.fileno(), 100, 0).split()[1])  # ns
        return time.perf_counter() - delay * 1e-9
