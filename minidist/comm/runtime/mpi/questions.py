"""A limit for waits, and what each rank waited for when it was over.

Ranks of one machine publish what they wait for in memory that all see, so a deadlock is told at once. Ranks of several
machines share no memory. So a rank whose wait has taken too long asks all others what they do. Those that wait too, or
have ended, answer; one that computes does not. Gloo and torch's watchdog of NCCL have such a limit as well.
"""

import time
from collections.abc import Callable

from mpi4py import MPI

from minidist.comm.failures import Deadlock, Hang

ASK, ANSWER = 10, 11  # tags
ANSWER_SECONDS = 2.0
IDLE_SECONDS = 2e-3  # between two looks of a rank that has nothing to do: MPI's own wait would take a whole core
LOOK_SECONDS = 0.05  # between two looks for questions: each is a call of MPI

WAITS = ": waits"  # what every description of a wait contains


class Questions:
    """What this rank asks the others of a job, and answers them.

    Args:
        comm: of the whole job. limit: seconds in which nothing moves, after which a wait is over.
    """

    def __init__(self, comm: MPI.Comm, limit: float) -> None:
        self.comm, self.limit = comm, limit
        self.rank = comm.Get_rank()
        self._looked = self._asked = 0.0

    def look(self, since: float, doing: Callable[[], str], ranks: int) -> None:
        """Answer who has asked. Called again and again by a rank that waits.

        Args:
            since: the time, of ``time.monotonic``, since which nothing has moved.
            doing: tells in words what this rank does.
            ranks: how many take part in the run: the first ones of the job.

        Raises:
            Deadlock: when the limit is over and all other ranks wait too, or have ended.
            Hang: when it is over and some do not answer.
        """
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        self._looked = now
        if answer(self.comm, doing):
            self._asked = now  # whoever has asked ends the run
        if now - max(since, self._asked) > self.limit:
            raise self._verdict(doing(), ranks)

    def _verdict(self, doing: str, ranks: int) -> Deadlock | Hang:
        """The error that ends the run, with what each rank does."""
        for rank in range(ranks):
            if rank != self.rank:
                self.comm.send(None, rank, ASK)
        answers, status = {self.rank: doing}, MPI.Status()
        deadline = time.monotonic() + ANSWER_SECONDS
        while len(answers) < ranks and time.monotonic() < deadline:
            if min(answer(self.comm, lambda: doing), default=self.rank) < self.rank:
                time.sleep(2 * ANSWER_SECONDS)  # a lower rank asks at the same time: its error is the one to be read
            while self.comm.Iprobe(MPI.ANY_SOURCE, ANSWER, status):
                answers[status.Get_source()] = self.comm.recv(source=status.Get_source(), tag=ANSWER)
            time.sleep(1e-3)
        silent = tuple(rank for rank in range(ranks) if rank not in answers)
        lines = [
            f"  rank {rank} is in {text}" if WAITS in text else f"  rank {rank} {text}"
            for rank, text in answers.items()
        ]
        lines += [f"  rank {rank} does not answer: it computes, or is stuck outside of any call" for rank in silent]
        message = "\n".join([f"no message has reached rank {self.rank} for {self.limit:g} s:", *sorted(lines)])
        return Hang(message, silent, answers) if silent else Deadlock(message, answers)


def answer(comm: MPI.Comm, doing: Callable[[], str]) -> list[int]:
    """Tell all ranks that have asked what this one does; return who they were."""
    status, asked = MPI.Status(), []
    while comm.Iprobe(MPI.ANY_SOURCE, ASK, status):
        asked.append(status.Get_source())
        comm.recv(source=asked[-1], tag=ASK)
        comm.send(doing(), asked[-1], ANSWER)
    return asked


def answer_until(comm: MPI.Comm, is_over: Callable[[], bool], doing: str) -> None:
    """Wait for something between runs, and tell all ranks that ask what this one does."""
    while not is_over():
        answer(comm, lambda: doing)
        time.sleep(IDLE_SECONDS)
