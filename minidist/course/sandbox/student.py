"""A learner's answers as a grader uses them: called on ranks, observed from outside."""

import importlib
import warnings
from collections.abc import Callable, Sequence

from minidist.comm.failures import RankFailed
from minidist.comm.runtime.clusters import WarmClusters, preload
from minidist.comm.runtime.launch import Cluster
from minidist.course.answers import Source
from minidist.course.sandbox.in_rank import Contract, RankResult, run_in_rank

SECONDS = 10.0  # for one call on all its ranks; the solutions take milliseconds
START_SECONDS = 120.0  # for ranks to start, even on a busy machine
QUEUE_BYTES = 1 << 16  # between two ranks: containers often have little shared memory


class WarmRanks(WarmClusters):
    """Clusters that stay warm: ``warm_ranks(n)`` returns one of n ranks, always the same.

    Args:
        modules: modules that ranks import before they run an answer, so that imports do not count as its time.
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


class Student:
    """The answers of one chapter, judged by the contract of one task on these ranks."""

    def __init__(self, source: Source, contract: Contract, ranks: WarmRanks) -> None:
        self.source, self.contract, self.ranks = source, contract, ranks
        self.remarks: list[str] = []
        self.called = "the answer"  # the function that was called last

    def on_ranks(self, size: int, function: Callable, *args) -> list[RankResult]:
        """Run ``function(world, answers, *args)`` on ``size`` ranks; ``answers`` has the learner's functions.

        The function is the grader's own. It returns numbers, strings, arrays, or lists, tuples and dicts of those.

        Raises:
            RankFailed, Deadlock, TimeoutError: see ``Cluster.run``.
            AssertionError: if messages were sent that no rank received.
        """
        call = (self.source, self.contract, function, args)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", ".*never received", RuntimeWarning)
            try:
                results = self.ranks(size).run(run_in_rank, *call, timeout=SECONDS)
            except RuntimeWarning as leftover:
                raise AssertionError(str(leftover)) from None
            except RankFailed as error:
                if error.exitcode is not None:  # what ended one process may have ended idle ones too
                    self.ranks.close()
                raise
        if any(result.has_threads for result in results):
            self.ranks.close()
        for result in results:
            self.remarks += [remark for remark in result.remarks if remark not in self.remarks]
        return results

    def call(self, name: str, *args):
        """Call the learner's function of that name on a single rank and return its result."""
        return self.call_each(name, [args])[0]

    def call_each(self, name: str, inputs: Sequence[tuple]) -> list:
        """Call the learner's function for each tuple of arguments, in one run on a single rank; return the results."""
        results = self.on_ranks(1, _call_each, name, inputs)
        self.called = name
        return results[0].value


def _call_each(world, answers, name: str, inputs: Sequence[tuple]) -> list:
    return [getattr(answers, name)(*args) for args in inputs]
