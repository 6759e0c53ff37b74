"""Warm ranks: clusters that start once and run many functions."""

import sys
from collections.abc import Callable

from minidist.comm.runtime.launch import Cluster
from minidist.comm.runtime.new_cluster import job_size, new_cluster
from minidist.comm.runtime.processes.starting import interrupts_held
from minidist.comm.runtime.processes.sweep import claim_temporary_folder


class WarmClusters:
    """``clusters(n)`` is a Cluster of n ranks, the same one every time. A context manager.

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
        """End all their ranks. The next call starts new ones."""
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()


def preload(*modules: str) -> None:
    """Import these modules once in the server that forks the ranks, instead of in every rank.

    Call it before the first rank starts. It does nothing where ranks are not forked: outside Linux, and in an MPI job.
    """
    if sys.platform == "linux" and job_size() is None:
        from multiprocess import forkserver, resource_tracker

        claim_temporary_folder()
        forkserver.set_forkserver_preload(["minidist.comm.runtime.worker", *modules])
        resource_tracker.ensure_running()  # otherwise the server starts it, and lets interrupts through
        with interrupts_held():
            forkserver.ensure_running()
