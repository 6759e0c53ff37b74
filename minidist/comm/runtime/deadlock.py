"""Detection of deadlocks: what each rank publishes about itself distinguishes them from long waits.

A blocked rank names the ranks that it waits for. A set of blocked ranks is deadlocked when each of them waits only
for ranks of the set or for ranks that have finished: then no rank is left to send what they wait for (Holt,
"Some Deadlock Properties of Computer Systems", 1972). No timeout is involved: a rank that computes for an hour is
not blocked, and a deadlock counts as one from its first millisecond.

Ranks continue to run while the parent scans them, so one scan does not show them all at the same moment. Three scans
are compared: two in immediate succession, and one later. A rank is stuck if its status is the same in all three, and if
it polled all its queues at least twice without success between the second and the third.

Why that is enough: suppose that some rank of a stuck set moves after the first scan, and take the first one that does.
It moves after the third scan, or its status there would differ, and so after its two unsuccessful polls. The poll that
lets it move finds a message, or free space. But until then no other rank of the set has moved since the first scan, so
what this poll finds was there for the two unsuccessful polls already: a contradiction.

So a rank that is stuck stays stuck, and the set of them only grows. It grows late on a busy machine, where a rank may
wait long for a core before it comes to the call in which it gets stuck. An earlier report would call it a bystander, so
``DeadlockWatch`` waits until the set has stopped growing.
"""

from collections.abc import Callable, Sequence, Set

from minidist.comm.transports.transport import BLOCKED, FINISHED, Status

SETTLE_SECONDS = 0.2  # the time that other ranks get to join a deadlock


class DeadlockWatch:
    """Repeated scans of the ranks, until all that belong to a deadlock are known.

    ``clock(ranks)`` returns a function that returns for how many seconds these ranks could have run since then.
    """

    def __init__(self, scan: Callable[[], list[Status]], clock: Callable[[set[int]], Callable[[], float]]) -> None:
        self._scan, self._clock = scan, clock
        self._first, self._second = scan(), scan()
        self._seconds: Callable[[], float] = lambda: 0.0  # since a rank was last found stuck
        self.stuck: set[int] = set()  # the ranks found so far that can never continue
        self.statuses = self._second  # of each rank, at the last look

    def look(self) -> bool:
        """Look once more; return whether there is a deadlock and no further rank is likely to join it."""
        self.statuses = self._scan()
        found = find_deadlock(self._first, self._second, self.statuses, self.stuck)
        self._first, self._second = self._scan(), self._scan()
        others = {rank for rank, status in enumerate(self.statuses) if status.state != FINISHED} - self.stuck - found
        if found:
            self.stuck |= found
            self._seconds = self._clock(others)
        return bool(self.stuck) and (not others or self._seconds() >= SETTLE_SECONDS)


def find_deadlock(
    first: Sequence[Status], second: Sequence[Status], third: Sequence[Status], known: Set[int] = frozenset()
) -> set[int]:
    """Return the ranks that can never continue, apart from those already ``known``. A scan has each rank's status."""
    finished = {rank for rank, status in enumerate(first) if status.state == FINISHED}
    stuck = {
        rank
        for rank, (a, b, c) in enumerate(zip(first, second, third, strict=True))
        if rank not in known
        and a.state == b.state == c.state == BLOCKED
        and a.awaited == b.awaited == c.awaited != 0
        and a.moved == b.moved == c.moved
        and c.polls - b.polls >= 2
    }
    while True:  # a rank that waits for one that may still act is not stuck, and so on
        hopeful = {rank for rank in stuck if awaited_ranks(third[rank]) - stuck - known - finished}
        if not hopeful:
            return stuck
        stuck -= hopeful


def awaited_ranks(status: Status) -> set[int]:
    return {rank for rank in range(status.awaited.bit_length()) if status.awaited >> rank & 1}


def describe(stuck: set[int], statuses: Sequence[Status], waiting: dict[int, str]) -> str:
    """Return the message of a Deadlock: which rank waits for which, in which call and where, and how to fix it."""
    finished = {rank for rank, status in enumerate(statuses) if status.state == FINISHED}
    ranks = "ranks " + ", ".join(map(str, sorted(stuck))) if len(stuck) > 1 else f"rank {min(stuck)}"
    lines = [f"{ranks} of {len(statuses)} can never continue:"]
    lines += [f"  rank {rank} is in {waiting[rank]}" for rank in sorted(stuck)]
    awaited = set().union(*(awaited_ranks(statuses[rank]) for rank in stuck))
    lines += [
        f"  rank {rank} has finished: it will send and receive nothing more" for rank in sorted(awaited & finished)
    ]
    bystanders = set(range(len(statuses))) - stuck - finished
    lines += [f"  rank {rank} was still running: it is not part of the deadlock" for rank in sorted(bystanders)]
    calls = {waiting[rank].split(": waits for")[0] for rank in stuck}
    if awaited & finished or (len(calls) > 1 and any(", collective " in call for call in calls)):
        lines.append("Every rank of a group must make the same collective calls in the same order,")
        lines.append("and every receive needs its send.")
    elif all("to take" in waiting[rank] for rank in stuck):
        lines.append(
            "Each sends before it receives, and the messages do not fit the queues: post both at once with "
            "batch_isend_irecv, or let every other rank receive first."
        )
    else:
        lines.append(
            "Have one of them send before it receives, or post sends and receives together with batch_isend_irecv."
        )
    return "\n".join(lines)
