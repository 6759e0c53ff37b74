"""The core that a waiting rank runs on, and when to give it up.

With more ranks than cores, the awaited rank may need this core: giving it up (``sched_yield``) is then the fastest way
on, and on an idle machine it costs next to nothing. Beside a program that computes all the time it costs dearly. To
Linux, a task that yields has used up its time slice (``yield_task_fair`` in kernel/sched/fair.c), so the other programs
have theirs first, some milliseconds each, and the rank has paid for time in which it did nothing. A rank that sleeps
pays nothing, and is entitled to the core soon after it wakes.

No call tells a process which kind of machine it is on, but the time that its yields take does. One long yield says
little: any process loses its core now and then. After several in a row, each as long as a time slice, the rank does not
yield for many times as long; the next long one renews that.

Linux may schedule by groups (a session, a container): a yield gives way inside its own group alone. Programs of another
group take the core all the same, but not because of a yield, so most yields are short and the rank goes on with them.

Open MPI (``mpi_yield_when_idle``) and LLVM's OpenMP (``KMP_USE_YIELD=2``) yield where there are more ranks or threads
than cores, which they count. They do not see other programs.
"""

import os
import time

SHARED_SECONDS = 50e-6  # a yield takes longer only if another process then had the core
CROWDED_NANOSECONDS = 1_000_000  # and longer than this if it was one that does not wait as ranks do
IN_A_ROW = 5  # so many such yields tell a crowded core
FORGO = 50  # for so many times as long as such a yield took, the rank does not yield
LONGEST_FORGONE = 1_000_000_000  # ns: during a yield the process may be stopped, or its machine suspended


class Core:
    """What a rank has learned about the core that it runs on."""

    def __init__(self) -> None:
        self._long_yields = 0  # in a row
        self._crowded_until = 0  # on the clock of time.perf_counter_ns

    @property
    def crowded(self) -> bool:
        """Whether giving it up would likely take long: a rank that waits should sleep."""
        return time.perf_counter_ns() < self._crowded_until

    def give_up(self) -> float:
        """Give it up once; return for how many seconds it was gone."""
        before = time.perf_counter_ns()
        _yield()
        now = time.perf_counter_ns()
        self._long_yields = self._long_yields + 1 if now - before > CROWDED_NANOSECONDS else 0
        if self._long_yields >= IN_A_ROW:
            self._crowded_until = now + min(FORGO * (now - before), LONGEST_FORGONE)
        return (now - before) * 1e-9


_yield = getattr(os, "sched_yield", lambda: time.sleep(0))
