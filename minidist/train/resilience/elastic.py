"""Elastic training: a run goes on when ranks die, in the best layout of what is left, and ends on the same bits.

Each attempt runs until it ends or fails. After a failure the run goes on from the last committed checkpoint, or from
copies in the memory of ranks that survived, whichever is newer. It has as many ranks as before (``restart``: a new
machine takes the dead one's place) or those that are left (``shrink``). Nothing needs to be retuned, because every
layout computes the same bits. (torchrun's ``--max-restarts`` starts all workers again in the same way, and leaves it to
the program to find its checkpoint.)

What a new start cannot cure ends the run at once: training that diverged, a setting that cannot be, memory that is too
small, and a failure that comes again in the same step.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from minidist.comm.failures import Deadlock, Hang, RankFailed
from minidist.comm.runtime.launch import Cluster
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.folder import own_folder
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.going_back import go_back
from minidist.train.resilience.interruption import Attempt, Failure, Interruption, kind_of
from minidist.train.resilience.shrink import best_layout
from minidist.train.result import Run, RunOptions
from minidist.train.trainer import run_in_folder

ON_FAILURE = ("shrink", "restart")
NOT_RETRIED = (  # errors that come again wherever the run goes on
    "FloatingPointError", "MemoryError", "_ArrayMemoryError", "ValueError", "BadCheckpoint",
)  # fmt: skip


@dataclass(frozen=True)
class Elasticity:
    """How a run is to go on after a failure.

    Attributes:
        on_failure: "shrink" to go on with the ranks that are left, "restart" to start the dead ones again.
        max_restarts: failures after which the run ends.
        patience: seconds without a report of any rank after which the ranks that wait for nobody count as hanging.
    """

    on_failure: str = "shrink"
    max_restarts: int = 10
    patience: float = 60.0

    def __post_init__(self) -> None:
        if self.on_failure not in ON_FAILURE:
            raise ValueError(f"--on-failure must be one of {', '.join(ON_FAILURE)}, but is {self.on_failure}")
        if self.max_restarts < 0:
            raise ValueError(f"--max-restarts must not be negative, but is {self.max_restarts}")
        if not self.patience > 0:
            raise ValueError(f"--patience must be more than 0 seconds, but is {self.patience:g}")


def run_elastic(
    config: TrainConfig,
    layout: Layout,
    options: RunOptions,
    elasticity: Elasticity = Elasticity(),
    on_step: Callable[[int, float], None] | None = None,
    rank_function: Callable | None = None,
    on_event: Callable[[int, tuple], None] = lambda rank, event: None,
    on_interruption: Callable[[Interruption], None] = lambda interruption: None,
    start: Callable[..., Cluster] = Cluster,
) -> tuple[Run, list[Interruption]]:
    """Train as ``run`` does, and go on after failures.

    Faults that have struck do not strike again. Those that have not count ranks as the layout does that the run has by
    then.

    Args:
        on_step, rank_function, on_event: as for ``run``.
        on_interruption: called as the run is about to go on. How long that took is not known yet.
        start: makes the Cluster.

    Returns:
        The last attempt, and what happened before it.

    Raises:
        ValueError: for a run that saves nothing, or a folder that cannot take its checkpoints.
        RankFailed, Deadlock, Hang: for a failure that a new start does not cure.
        RuntimeError: when no rank is left, or there were too many failures.
    """
    if options.saving is None and options.peer_copies is None:
        raise ValueError("elastic training goes on from checkpoints or from copies: add --save DIR or --peer-copies 1")
    options = replace(options, progress=True)
    origin, left, patience = options.resume, layout.world_size, elasticity.patience
    verified = Manifest.read(Disk(), Path(origin)).progress.step if origin else 0
    interruptions, last, not_after, since = [], None, None, time.monotonic()
    with (
        own_folder(options.saving and options.saving.folder, origin) as problem,
        start(layout.world_size, keep_survivors=options.peer_copies is not None) as cluster,
    ):
        if problem:
            on_event(0, ("note", problem))
        while True:
            before = interruptions[-1] if interruptions else None
            attempt = Attempt(before, since, on_event, verified)
            try:
                if before is not None:
                    options = go_back(cluster, layout, options, origin, not_after, before, patience)
                    attempt.verified = before.resumed  # the steps behind it are computed anew, by whoever is left
                    on_interruption(before)
                result = run_in_folder(
                    cluster, config, layout, options, on_step, rank_function, attempt.on_event, patience
                )
                return result, interruptions
            except (RankFailed, Deadlock, Hang) as error:
                since = time.monotonic()
                failed = attempt.failed(error, layout, since)
                mark = None if attempt.struck else (failed.step, getattr(error, "summary", type(error).__name__))
                if kind_of(error) in NOT_RETRIED or (mark is not None and mark == last):
                    raise
                last = mark
                if elasticity.on_failure == "shrink":
                    left -= len(failed.ranks)
                check_limits(failed, left, len(interruptions), elasticity, error)
                if elasticity.on_failure == "shrink":
                    layout = failed.after = best_layout(config, layout, left)
                verified = attempt.verified
                # a rank may die after a number went wrong and before a check could tell
                unsure = options.check_replicas or kind_of(error) == "CorruptedNumbers"
                not_after = verified if unsure else None
                options = replace(options, faults=tuple(f for f in options.faults if f not in attempt.struck))
                interruptions.append(failed)
                staying = len(set(cluster.survivors) - set(failed.ranks))
                cluster.regroup(staying or layout.world_size, without=failed.ranks)


def check_limits(failed: Interruption, left: int, earlier: int, elasticity: Elasticity, error: Failure) -> None:
    """Raises RuntimeError where there are no ranks to go on with, or no more failures are allowed."""
    if left < 1:
        raise RuntimeError(f"{failed.why}, and no rank is left to go on with") from error
    if earlier == elasticity.max_restarts:
        raise RuntimeError(
            f"{failed.why}; the run has gone on after {earlier} failures already, and --max-restarts allows no more"
        ) from error
