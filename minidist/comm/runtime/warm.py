"""Warm ranks: clusters that are started once and used again and again."""

import sys
from collections.abc import Callable

from minidist.comm.runtime.launch import Cluster
from minidist.comm.runtime.sweep import claim_temporary_folder


class WarmClusters:
    """``clusters(n)`` is a Cluster of n ranks, the same one every time. A context manager.

    What a function leaves behind in its ranks, such as a replaced function, meets the next one: close the clusters
    between two functions that must not meet.

    Args:
        start: n -> a new Cluster of n ranks.
    """

    def __init__(self, start: Callable[[int], Cluster] = Cluster) -> None:
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
    """Have the server that ranks are forked from import these modules, so that not every rank has to.

    It has to be called before the first rank starts. Where ranks are not forked (outside Linux) it does nothing.
    """
    if sys.platform == "linux":
        from multiprocess import forkserver

        claim_temporary_folder()
        forkserver.set_forkserver_preload(["minidist.comm.runtime.worker", *modules])
        forkserver.ensure_running()
