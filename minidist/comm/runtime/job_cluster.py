"""The ranks of an MPI job, with the methods of a Cluster.

Process 0 of the job runs the program and its own rank; the others serve it: they wait for a function, run it, send what
it returned, and wait for the next. So a program for a Cluster needs no change.
"""

import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import chain

from mpi4py import MPI

from minidist.comm.runtime import serialization
from minidist.comm.runtime.clusters import clusters_of_job
from minidist.comm.runtime.job import LIMIT_SECONDS, Job, end_job
from minidist.comm.transports.mpi import answer_until

COMMAND, RESULT, REPORT = 0, 1, 2  # tags
ENDED = "has ended its function"
FAILED = 2  # the exit status


class JobCluster:
    """A cluster of the first ``world_size`` ranks of a job, made by process 0.

    Raises:
        ValueError: for more ranks than the job has.
    """

    def __init__(self, job: Job, world_size: int) -> None:
        if world_size > job.size:
            raise ValueError(
                f"this needs {world_size} ranks, but the job has {job.size}: start it with mpiexec -n {world_size}"
            )
        self.job, self.world_size = job, world_size

    def __enter__(self) -> "JobCluster":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """Do nothing: the ranks belong to the job."""

    def run(
        self,
        fn: Callable,
        *args,
        timeout: float | None = None,
        patience: float | None = None,
        on_report: Callable[[int, object], None] | None = None,
    ) -> list:
        """Run ``fn(world, *args)`` on every rank, and return their results in rank order: see ``Cluster.run``.

        A rank that fails ends the whole job, this process too.

        Args:
            timeout: must be None, because an MPI job has a time limit of its own; otherwise a ValueError.
            patience: seconds that a wait may last while nothing moves. Then it ends the job.
        """
        if timeout is not None:
            raise ValueError("a run of an MPI job has no timeout; use patience=, or the launcher's time limit")
        limit = patience or LIMIT_SECONDS
        run = serialization.dumps((fn, args, self.world_size, limit), "the function or an argument")
        for rank in range(1, self.world_size):
            self.job.comm.send(("run", run), rank, COMMAND)
        hear = on_report or (lambda rank, thing: None)

        def report(thing) -> None:
            self._pass_on(hear)
            hear(0, thing)

        results = [run_rank(self.job, run, report), *self._collect()]
        self._pass_on(hear)
        for line in chain.from_iterable(leftovers for _, leftovers in results):
            warnings.warn(line, RuntimeWarning, stacklevel=2)
        return [result for result, _ in results]

    def _collect(self) -> list:
        """Return the other ranks' results, in rank order: see ``run_rank``."""
        comm, status = self.job.comm, MPI.Status()
        results = {}
        while len(results) < self.world_size - 1:
            answer_until(comm, lambda: comm.Iprobe(MPI.ANY_SOURCE, RESULT, status), ENDED)
            rank = status.Get_source()
            results[rank] = serialization.loads(comm.recv(source=rank, tag=RESULT))
        return [results[rank] for rank in sorted(results)]

    def _pass_on(self, hear: Callable[[int, object], None]) -> None:
        """Pass on what the other ranks have reported: whenever rank 0 reports something itself, and at the end."""
        comm, status = self.job.comm, MPI.Status()
        while comm.Iprobe(MPI.ANY_SOURCE, REPORT, status):
            rank = status.Get_source()
            hear(rank, serialization.loads(comm.recv(source=rank, tag=REPORT)))


def run_rank(job: Job, run: bytes, report: Callable[[object], None]) -> tuple[object, list[str]]:
    """Do this rank's part of a run; return its result, and the messages that it never received, in words.

    An error ends the job.
    """
    try:
        function, arguments, size, limit = serialization.loads(run)
        world = job.world(size, limit)
        world.report = report
        result = function(world, *arguments)
        return result, job.leave(world, ENDED)
    except BaseException as error:
        end_job(job, error, FAILED, __file__)


def serve(job: Job) -> int:
    """Run what process 0 sends until it says stop, on every process but 0; return the exit status."""
    # the launcher gets whole lines, as soon as they are printed
    sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore[reportAttributeAccessIssue]  # a TextIOWrapper
    sending: list[MPI.Request] = []  # MPI reads these later

    def report(thing) -> None:
        sending[:] = [request for request in sending if not request.Test()]
        sending.append(job.comm.isend(serialization.dumps(thing), 0, REPORT))

    while True:
        answer_until(job.comm, lambda: job.comm.Iprobe(0, COMMAND), ENDED)
        command, run = job.comm.recv(source=0, tag=COMMAND)
        if command == "stop":
            MPI.Request.Waitall(sending)
            return 0
        sending.append(job.comm.isend(serialization.dumps(run_rank(job, run, report), "the result"), 0, RESULT))


@contextmanager
def leading(job: Job) -> Iterator[None]:
    """Let ``new_cluster`` return clusters of the job's ranks in process 0's ``with`` block; then end the others."""
    try:
        with clusters_of_job(partial(JobCluster, job), job.size):
            yield
    finally:
        for rank in range(1, job.size):
            job.comm.send(("stop", b""), rank, COMMAND)
