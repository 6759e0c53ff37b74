"""What demonstrations of training share: warm ranks, a small model, and the question where a broken run parts."""

import os
from collections.abc import Callable
from contextlib import contextmanager, nullcontext

from minidist.analysis.steps import step_length, traced_step
from minidist.comm.runtime.launch import Cluster
from minidist.comm.runtime.warm import WarmClusters, preload
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run
from minidist.verify.comparison import ONE_PROCESS, Difference, agrees, first_difference


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


RANKS = min(4, max(2, cores()))  # of a demonstration whose picture is of real time
TRIES = 3  # of which that picture shows the fastest


class WarmRanks:
    """``with warm(n) as cluster`` gives n ranks, the same ones each time; they do not end with that block.

    Args:
        clusters: n -> a Cluster of n ranks.
    """

    def __init__(self, clusters: Callable[[int], Cluster]) -> None:
        self.clusters = clusters
        self.references: dict[TrainConfig, Run] = {}

    def __call__(self, size: int) -> nullcontext[Cluster]:
        return nullcontext(self.clusters(size))

    def train(
        self,
        config: TrainConfig,
        layout: Layout,
        rank_function: Callable | None = None,
        trace: bool = False,
        digests: bool = True,
    ) -> Run:
        """A training run, with the digest of every step unless it is not wanted: on many ranks it takes its time."""
        options = RunOptions(step_digests=digests, trace=trace)
        with self(layout.world_size) as cluster:
            return run(cluster, config, layout, options, rank_function=rank_function)

    def reference(self, config: TrainConfig) -> Run:
        """The run of one process, trained once however often it is asked for."""
        if config not in self.references:
            self.references[config] = self.train(config, ONE_PROCESS)
        return self.references[config]

    def parting(self, config: TrainConfig, broken: Run, rank_function: Callable) -> Difference:
        """Where a broken run parts from one process.

        Raises:
            RuntimeError: if it does not: the bug does no harm.
        """
        reference = self.reference(config)
        place = None if agrees(reference, broken) else first_difference(reference, broken, rank_function, self)
        if place is None:
            raise RuntimeError(f"the bug planted in {broken.layout} changes no bit: choose another size or seed")
        return place

    def prove(self, config: TrainConfig, right: Run) -> str:
        """That a run has the bits of one process, in a sentence.

        Raises:
            RuntimeError: if it has not.
        """
        if not agrees(self.reference(config), right):
            raise RuntimeError(f"{right.layout} does not have the bits of one process: this is a fault of minidist")
        steps = "one step" if len(right.losses) == 1 else f"{len(right.losses)} steps"
        return f"After {steps} the same as one process, bit for bit (SHA-256 {right.fingerprint[:8]})."


@contextmanager
def warm_ranks():
    """Ranks that stay warm until the block ends."""
    preload("minidist.train.trainer")
    with WarmClusters() as clusters:
        yield WarmRanks(clusters)


def told(place: Difference) -> str:
    """Where a run parts, in a sentence: step, parameter, ulps, and how much of the parameter."""
    return f"Training diverges from the single-process run: it {place}."


def fastest(
    warm: WarmRanks, config: TrainConfig, layout: Layout, rank_function: Callable | None = None, digests: bool = True
) -> Run:
    """Of a few runs, traced, the one whose last step was the fastest: this machine disturbed it least.

    But ranks that share cores are in each other's way in every run, and one will do.
    """
    count = TRIES if layout.world_size <= cores() else 1
    tried = [warm.train(config, layout, rank_function, trace=True, digests=digests) for _ in range(count)]
    return min(tried, key=lambda run: step_length(traced_step([rank.log for rank in run.ranks])))
