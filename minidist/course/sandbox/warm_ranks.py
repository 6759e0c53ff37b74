"""Warm ranks for answers: small queues, and everything that graders need already imported."""

import importlib
from collections.abc import Sequence

from minidist.comm.runtime.clusters import WarmClusters, preload
from minidist.comm.runtime.launch import Cluster

START_SECONDS = 120.0  # for ranks to start, even on a busy machine
QUEUE_BYTES = 1 << 16  # between two ranks: containers often have little shared memory


class WarmRanks(WarmClusters):
    """``warm_ranks(n)`` returns a warm Cluster of n ranks, always the same one.

    Args:
        modules: what every rank imports before it runs an answer, so that imports do not count as the answer's time.
    """

    def __init__(self, modules: Sequence[str] = ()) -> None:
        super().__init__(self._start_ranks)
        self.modules = tuple(modules)

    def __call__(self, size: int) -> Cluster:
        cluster = super().__call__(size)
        if not cluster.is_warm:
            cluster.run(_import_modules, self.modules, timeout=START_SECONDS)
        return cluster

    def _start_ranks(self, size: int) -> Cluster:
        preload(*self.modules)
        return Cluster(size, queue_bytes=QUEUE_BYTES)


def _import_modules(world, modules: tuple[str, ...]) -> None:
    for name in modules:
        importlib.import_module(name)
