"""A clock for a run's time limit that barely advances while ranks wait for the cores of a busy machine."""

import os
import time
from pathlib import Path

PATIENCE = 20  # a run ends after this many times its limit, however busy the machine is


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class PatientClock:
    """The seconds of a run as an idle machine would count them.

    While no rank needs a core, the clock runs at normal speed: a sleep takes as long on any machine. While some ranks
    do, it advances by the share of the cores that they get. (Only on Linux; elsewhere it is a plain clock.)
    """

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self._cores = cores()
        self._seconds = 0.0
        self._looked, (_, self._used) = time.monotonic(), self._look()

    def seconds(self) -> float:
        """The seconds so far. Call it regularly, because it samples what the ranks do."""
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
        """How many ranks are runnable, and how many seconds of CPU time all of them have used."""
        runnable, ticks = 0, 0
        for pid in self._pids:
            try:
                fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            except OSError:  # it has ended, or this is not Linux
                continue
            runnable += fields[0] == "R"
            ticks += int(fields[11]) + int(fields[12])  # in user code, and in the kernel
        return runnable, ticks / os.sysconf("SC_CLK_TCK") if ticks else 0.0
