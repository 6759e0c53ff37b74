"""Simulation of a run on machines that fail, event by event, which accounts for all of its time.

It uses none of the formulas of goodput.py, and serves to check them. Time is counted in whole microseconds, so all
parts add up to the total exactly.

The run trains for an interval, stops for a save, and so on. A save counts (is committed) at once, or, if it is written
in the background, when the write has ended. A failure may come at any time: in training, saves, detection and restarts.
Training since the last committed save is lost. Another failure in detection or restart begins both again. Machines that
wait or stand by do not fail, and fewer machines at work fail less often.
"""

from collections import deque
from dataclasses import dataclass, fields
from math import inf

from minidist.nn.random import generator
from minidist.plan.units import DAY

MICROSECONDS = 1_000_000  # in a second
MOST_EVENTS = 10_000_000  # most saves and failures of a simulation, which then takes about a minute


@dataclass(frozen=True)
class Machines:
    """Machines of a run, and its saves. Times are in seconds.

    Attributes:
        mtbf: mean time between failures of all machines together.
        interval: training time between two saves.
        pause: time that a save stops training.
        write: time that the save is then written in the background before it counts.
        detection: time from a failure until the run knows of it.
        restart: time from then until training goes on.
        machines: number of machines that work at once.
        least: fewest machines with which the run goes on; with fewer it waits.
        spares: number of machines that stand by.
        repair: time from a failure until its machine is back.
    """

    mtbf: float
    interval: float
    pause: float
    write: float = 0.0
    detection: float = 0.0
    restart: float = 0.0
    machines: int = 1
    least: int = 1
    spares: int = 0
    repair: float = 0.0

    def __post_init__(self):
        for name in ("mtbf", "interval"):
            if not 1 / MICROSECONDS <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be at least a microsecond and finite, got {getattr(self, name)} s")
        for name in ("pause", "write", "detection", "restart", "repair", "spares"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name} must be 0 or more and finite, got {getattr(self, name)}")
        if self.interval < self.write:
            raise ValueError(f"interval ({self.interval} s) must not be below write ({self.write} s): save less often")
        if not 1 <= self.least <= self.machines:
            raise ValueError(f"least must be from 1 to machines ({self.machines}), got {self.least}")


@dataclass
class TimeSpent:
    """Time of a run by its uses, in whole microseconds, and the number of its failures.

    Attributes:
        useful: training that was kept, as time of all machines.
        saving: pauses for saves.
        lost: training that a failure undid, as time of all machines.
        detecting: time from failures until they were known.
        restarting: time from then, or from the end of a wait, until training went on.
        waiting: time until enough machines were back.
        missing: training time that was lost because fewer machines than all trained.
        failures: number of failures; not a time.
    """

    useful: int = 0
    saving: int = 0
    lost: int = 0
    detecting: int = 0
    restarting: int = 0
    waiting: int = 0
    missing: int = 0
    failures: int = 0

    @property
    def parts(self) -> dict[str, int]:
        """Time by use: name -> microseconds."""
        return {field.name: getattr(self, field.name) for field in fields(self) if field.name != "failures"}

    @property
    def total(self) -> int:
        return sum(self.parts.values())

    def share(self, part: str) -> float:
        """Return a part as a share of the total."""
        return self.parts[part] / self.total


def simulate(setup: Machines, seconds: float, seed: int = 0) -> TimeSpent:
    """Simulate a run of this length. Training that is not saved yet at its end counts as useful.

    Raises:
        ValueError: if the time is below a microsecond or infinite, or has more than MOST_EVENTS saves and failures.
    """
    if not 1 / MICROSECONDS <= seconds < inf:
        raise ValueError(f"the simulated time must be at least a microsecond and finite, got {seconds} s")
    events = seconds / min(setup.mtbf, setup.interval)
    if events > MOST_EVENTS:
        raise ValueError(
            f"{seconds / DAY:,.3g} days have some {events:,.3g} saves and failures, too many to simulate: choose "
            f"at most {seconds / DAY * MOST_EVENTS / events:,.3g} days"
        )
    return _Simulation(setup, _whole(seconds), seed).run()


class _Failure(Exception):
    """Raised when a machine fails."""


class _TimeIsUp(Exception):
    """Raised at the end of the simulated time."""


class _Simulation:
    """Simulation of one run. ``_spend`` moves the clock, and raises early at a failure or at the end of the time."""

    def __init__(self, setup: Machines, end: int, seed: int):
        self.setup = setup
        self.end = end
        self.random = generator("failures", seed)
        self.spent = TimeSpent()
        self.now = 0
        self.repairs: deque[int] = deque()  # when each machine in repair is back, soonest first
        self.working = setup.machines
        self.next_failure = self._draw_failure()
        self.unsaved = 0  # training since the last snapshot
        self.in_snapshot = 0  # training in a snapshot that does not count yet

    def run(self) -> TimeSpent:
        try:
            while True:
                try:
                    self._train()
                except _Failure:
                    self._recover()
        except _TimeIsUp:
            self.spent.useful += self.in_snapshot + self.unsaved
            return self.spent

    def _train(self) -> None:
        """Train and save until a failure."""
        interval, pause, write = (_whole(time) for time in (self.setup.interval, self.setup.pause, self.setup.write))
        while True:
            self._join()  # after each save
            self._spend(write, self._book_training)
            self.spent.useful += self.in_snapshot  # the last snapshot is written now, so it counts
            self.in_snapshot = 0
            self._spend(interval - write, self._book_training)
            self._spend(pause, self._book("saving"))
            self.in_snapshot, self.unsaved = self.unsaved, 0

    def _recover(self) -> None:
        """Lose uncommitted training, and get ready to train again, however many further failures happen."""
        self.spent.lost += self.in_snapshot + self.unsaved
        self.in_snapshot = self.unsaved = 0
        while True:
            self.spent.failures += 1
            self.next_failure = self._draw_failure()
            self.repairs.append(self.now + _whole(self.setup.repair))
            try:
                self._spend(_whole(self.setup.detection), self._book("detecting"))
                self._wait_for_machines()
                self._join()
                self._spend(_whole(self.setup.restart), self._book("restarting"))
                return
            except _Failure:
                continue

    def _wait_for_machines(self) -> None:
        may_be_missing = self.setup.spares + self.setup.machines - self.setup.least
        while self._in_repair() > may_be_missing:
            waited = min(self.repairs[0], self.end) - self.now
            self.next_failure += waited  # no machine fails meanwhile
            self._spend(waited, self._book("waiting"))
            if self.now == self.end:
                raise _TimeIsUp

    def _join(self) -> None:
        """Go on with all available machines, at most as many as the run has."""
        before, self.working = self.working, self.setup.machines - max(0, self._in_repair() - self.setup.spares)
        if self.working != before:  # more machines fail sooner
            self.next_failure = self.now + max(1, (self.next_failure - self.now) * before // self.working)

    def _spend(self, time: int, book) -> None:
        """Let this time pass, or less if a failure or the end comes first; book the time that has passed."""
        until = min(self.now + time, self.next_failure, self.end)
        passed, self.now = until - self.now, until
        book(passed)
        if passed < time:
            raise _Failure if until == self.next_failure else _TimeIsUp

    def _book(self, part: str):
        def book(passed: int) -> None:
            setattr(self.spent, part, getattr(self.spent, part) + passed)

        return book

    def _book_training(self, passed: int) -> None:
        """Book training as time of all machines; the share of those that are missing is a separate part."""
        trained = passed * self.working // self.setup.machines
        self.unsaved += trained
        self.spent.missing += passed - trained

    def _in_repair(self) -> int:
        while self.repairs and self.repairs[0] <= self.now:
            self.repairs.popleft()
        return len(self.repairs)

    def _draw_failure(self) -> int:
        """Draw the time of the next failure: exponentially distributed from now on, at least a microsecond."""
        mtbf = self.setup.mtbf * self.setup.machines / self.working
        return self.now + max(1, _whole(self.random.exponential(mtbf)))


def _whole(seconds: float) -> int:
    """Return whole microseconds; ten times the age of the universe for an infinite time."""
    return round(min(seconds, 4e18) * MICROSECONDS)
