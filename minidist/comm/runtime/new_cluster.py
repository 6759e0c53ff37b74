"""Ranks to run on: new processes of this machine, or in an MPI job its processes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from minidist.comm.runtime.launch import Cluster

_make: Callable[[int], Cluster] = Cluster
_job_size: int | None = None


def new_cluster(world_size: int) -> Cluster:
    """A Cluster of so many ranks; within ``clusters_of_job`` one of the job's."""
    return _make(world_size)


def job_size() -> int | None:
    """How many ranks the MPI job has whose processes are the ranks here; None where new processes are."""
    return _job_size


@contextmanager
def clusters_of_job(make: Callable[[int], Cluster], size: int) -> Iterator[None]:
    """Let ``make`` make what ``new_cluster`` returns."""
    global _make, _job_size
    before = _make, _job_size
    _make, _job_size = make, size
    try:
        yield
    finally:
        _make, _job_size = before
