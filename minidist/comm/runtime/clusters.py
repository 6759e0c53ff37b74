"""Ranks to run on: new processes of this machine, or in an MPI job its processes; and clusters that stay warm."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from minidist.comm.runtime.launch import Cluster
from minidist.comm.runtime.starting import interrupts_held, prepare_fork_server, usual_start_method

_make: Callable[[int], Any] = Cluster
_job_size: int | None = None


def new_cluster(world_size: int) -> Cluster:
    """Return a Cluster of ``world_size`` ranks; within ``clusters_of_job``, a cluster of the job's ranks."""
    return _make(world_size)


def job_size() -> int | None:
    """Return the number of ranks of the MPI job that runs this; None where ranks are new processes."""
    return _job_size


@contextmanager
def clusters_of_job(make: Callable[[int], Any], size: int) -> Iterator[None]:
    """Let ``new_cluster`` return ``make(world_size)`` and ``job_size`` return ``size`` within the ``with`` block."""
    global _make, _job_size
    before = _make, _job_size
    _make, _job_size = make, size
    try:
        yield
    finally:
        _make, _job_size = before


class WarmClusters:
    """Clusters that stay warm: ``clusters(n)`` is a Cluster of n ranks, the same one every time. A context manager.

    The ranks keep what a function changes in them, such as a replaced function. Close the clusters if the next function
    must not see it.

    Args:
        start: n -> a new Cluster of n ranks.
    """

    def __init__(self, start: Callable[[int], Cluster] = new_cluster) -> None:
        self._start = start
        self._clusters: dict[int, Cluster] = {}

    def __call__(self, size: int) -> Cluster:
        if size not in self._clusters:
            self._clusters[size] = self._start(size)
        return self._clusters[size]

    def __enter__(self) -> "WarmClusters":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        """End the ranks of all clusters. The next call starts new ones."""
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()


def preload(*modules: str) -> None:
    """Import these modules once in the server that forks the ranks, instead of in every rank.

    Call it before the first rank starts. It does nothing where ranks are not forked: outside Linux, and in an MPI job.
    """
    if usual_start_method() == "forkserver" and job_size() is None:
        from multiprocess import forkserver, resource_tracker

        prepare_fork_server(*modules)
        resource_tracker.ensure_running()  # otherwise the server starts it, and lets interrupts through
        with interrupts_held():
            forkserver.ensure_running()
