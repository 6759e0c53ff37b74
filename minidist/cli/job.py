"""A command in an MPI job: every process calls it, process 0 runs it, and the others are its ranks."""

import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

from minidist.launched import Launched, launched


def launched_with_others() -> Launched | None:
    """What the launcher of this process says, if it has started others too."""
    found = launched()
    return found if found is not None and found.size > 1 else None


@contextmanager
def heard_once(found: Launched | None) -> Iterator[None]:
    """Context manager: inside, only the first of the processes prints, because all of them say the same."""
    if found is None or found.rank == 0:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def run_in_job(options: Namespace, found: Launched) -> int:
    """Run a command that trains on the ranks of the job, any other one in process 0 alone; the exit status."""
    if not getattr(options, "on_ranks", False):
        return options.command(options) if found.rank == 0 else 0
    with heard_once(found):
        job, serve, leading = join(found)
    if job.rank:
        return serve(job)
    with leading(job):
        return options.command(options)


def join(found: Launched):
    """The job, and what serves it and leads it; process 0 tells where all ranks are."""
    from minidist.comm.runtime.job import Job

    job = Job(found)
    from minidist.comm.runtime.job_cluster import leading, serve  # they need MPI, which a job looks for first

    for line in job.comm.gather(job.where()) or ():
        print(line, file=sys.stderr)
    return job, serve, leading
