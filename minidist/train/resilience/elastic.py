"""Elastic training: a run goes on when ranks die, in the best layout of those left, and ends on the same bits.

Each attempt runs until it ends or fails. After a failure the run goes on from the last committed checkpoint, or from
copies in the memory of ranks that survived, whichever is newer. It has as many ranks as before (``restart``: a new
machine takes the dead one's place) or those that are left (``shrink``). Nothing needs to be retuned, because every
layout computes the same bits. (torchrun's ``--max-restarts`` starts all workers again in the same way, and leaves it to
the program to find its checkpoint.)

A failure that a restart cannot cure ends the run at once: training that diverged, an invalid setting, too little
memory, and a failure that comes again in the same step.
"""

import re
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import inf
from pathlib import Path

from minidist.comm.failures import Deadlock, Hang, RankFailed
from minidist.comm.runtime.launch import Cluster
from minidist.train.checkpoint.commit import MANIFEST, committed, discard_newer, step_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.folder import own_folder
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.peers import hand_over, survey
from minidist.train.checkpoint.restore import is_whole
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.resilience.faults import Fault, cancel_orders
from minidist.train.resilience.shrink import best_layout
from minidist.train.result import Run, RunOptions
from minidist.train.rules import of_options
from minidist.train.trainer import run_in_folder

ON_FAILURE = ("shrink", "restart")
NOT_RETRIED = (  # errors that come again wherever the run goes on
    "FloatingPointError", "MemoryError", "_ArrayMemoryError", "ValueError", "BadCheckpoint",
)  # fmt: skip


Failure = RankFailed | Deadlock | Hang


@dataclass
class Interruption:
    """A failure that a run survived.

    ``source`` is where its state came from: the folder of a checkpoint, "the memory of peers", or "the beginning"; ""
    if the next failure came before that was known.
    """

    step: int  # in which it happened, counted from 0
    ranks: tuple[int, ...]  # the failed ones; empty if none can be named, as in a deadlock
    why: str  # in one line
    before: Layout
    after: Layout
    resumed: int = 0  # the step with which the run went on
    source: str = ""
    lost: str = ""  # copies in memory that could not be used, and why; "" if none was missing
    detect: float = 0.0  # seconds from the last report of a rank that failed until the failure was known
    restart: float = 0.0  # seconds from then until all ranks were ready to take a step
    recompute: float = 0.0  # seconds until ``step`` was reached again

    def as_dict(self) -> dict:
        """Return what ``--json`` writes."""
        return asdict(self) | {"before": str(self.before), "after": str(self.after)}


class Attempt:
    """Record of what the ranks report during one attempt.

    The time to go on is charged to the interruption ``before`` it, which became known at ``since``. ``verified`` is the
    number of steps after which the state was last known to be right: at the beginning of the attempt, or at the ranks'
    last check since.
    """

    def __init__(
        self, before: Interruption | None, since: float, on_event: Callable[[int, tuple], None], verified: int
    ) -> None:
        self.before, self.since, self.pass_on = before, since, on_event
        self.struck: list[Fault] = []  # faults that have struck
        self.verified = verified
        self.ready = inf  # time at which its ranks were ready
        self.next_steps: dict[int, int] = {}  # rank -> the step that it is in
        self.heard: dict[int, float] = {}  # rank -> when it last reported

    def on_event(self, rank: int, event: tuple) -> None:
        now = self.heard[rank] = time.monotonic()
        if event[0] == "fault":
            self.struck.append(event[1])
        elif event[0] == "verified":
            self.verified = event[1] + 1  # the event counts steps from 0
        elif event[0] == "ready":
            self.next_steps[rank], self.ready = event[1], now
            self.verified = max(self.verified, event[1])
            if self.before is not None:
                self.before.restart = now - self.since
        elif event[0] == "step":
            self.next_steps[rank] = event[1] + 1
            if self.before is not None and event[1] < self.before.step:
                self.before.recompute = now - self.ready
        self.pass_on(rank, event)

    def failed(self, error: Failure, layout: Layout, now: float) -> Interruption:
        """Return a description of the failure that ended this attempt."""
        if self.before is not None and self.ready == inf:
            self.before.restart = now - self.since
        ranks, why = ranks_and_reason(error)
        steps = [step for rank, step in self.next_steps.items() if rank in ranks or not ranks]
        step = min(steps, default=self.before.resumed if self.before else 0)
        heard = [when for rank, when in self.heard.items() if rank in ranks or not ranks]
        return Interruption(step, ranks, why, layout, layout, detect=now - max(heard, default=self.since))


def kind_of(error: Failure) -> str:
    """Return the name of the exception that ended a rank; if there was none, the error's own."""
    return error.summary.partition(":")[0] if isinstance(error, RankFailed) else type(error).__name__


def ranks_and_reason(error: Failure) -> tuple[tuple[int, ...], str]:
    """Return the ranks that can no longer be relied on, and what happened, in one line."""
    if isinstance(error, RankFailed) and kind_of(error) == "CorruptedNumbers":
        # any rank may be the first to raise it: the message names the one whose numbers are wrong
        why = error.summary.partition(": ")[2].rstrip(".")
        named = re.search(r"\brank (\d+)", why.partition(".")[0])
        return (int(named[1]),) if named else (), why
    return () if isinstance(error, Deadlock) else error.ranks, str(error).splitlines()[0].rstrip(":")


def go_back(
    cluster: Cluster, options: RunOptions, origin: str | None, not_after: int | None, interruption: Interruption,
    patience: float,
) -> RunOptions:  # fmt: skip
    """Find the newest state to go on from, and give the cluster the size of the layout after the interruption.

    The run itself began with the checkpoint ``origin``. State of more than ``not_after`` steps is not trusted. Return
    the options to go on with; ``interruption`` records where the state came from.
    """
    layout, staying, held = interruption.after, len(cluster.survivors), None
    if staying:
        held, interruption.lost = survey(cluster, not_after, patience)
    folder = newest_intact(options.saving.folder, held or 0, not_after) if options.saving is not None else None
    origin = origin if origin and Path(origin, MANIFEST).is_file() else None  # --keep may have removed it since
    if held is not None and folder is None:
        if staying > layout.world_size:
            cluster.run(hand_over, layout.world_size, patience=patience)
        interruption.resumed, interruption.source = held, "the memory of peers"
    else:
        held, folder = None, folder or origin
        interruption.resumed = Manifest.read(Disk(), Path(folder)).progress.step if folder else 0
        interruption.source = folder or "the beginning"
    if options.saving is not None:  # at once, since the run may be killed before it begins again
        discard_newer(Disk(), Path(options.saving.folder), interruption.resumed)
    cluster.regroup(layout.world_size)
    return replace(options, resume=folder, recover=held)


def newest_intact(folder: str, after: int, not_after: int | None) -> str | None:
    """Return the newest intact checkpoint of more than ``after`` and at most ``not_after`` steps; None without any."""
    disk, root = Disk(), Path(folder)
    due = [name for name in committed(disk, root) if after < step_of(name) <= (inf if not_after is None else not_after)]
    return next((str(root / name) for name in reversed(due) if is_whole(disk, root / name)), None)


def without_what_cannot_be(options: RunOptions, config: TrainConfig, layout: Layout) -> tuple[RunOptions, list[str]]:
    """Return the options that are still legal in a smaller layout, and why others are dropped, in words."""
    lost = []
    for fewer in ({"rebalance": False}, {"check_replicas": 0, "check_by": "auto"}):
        left = replace(options, **fewer)
        broken = set(of_options(config, layout, options)) - set(of_options(config, layout, left))
        if broken:
            options, lost = left, [*lost, *sorted(broken)]
    gone = [fault for fault in options.faults if fault.rank >= layout.world_size]
    lost += [f"--fault {fault}: {layout} has ranks 0 to {layout.world_size - 1}" for fault in gone]
    return replace(options, faults=tuple(fault for fault in options.faults if fault not in gone)), lost


@dataclass(frozen=True)
class Elasticity:
    """Options: how a run goes on after a failure.

    Raises:
        ValueError: for an unknown ``on_failure``, ``max_restarts`` below 0, or ``patience`` not above 0.
    """

    on_failure: str = "shrink"  # go on with the ranks that are left; "restart" starts the dead ones again
    max_restarts: int = 10  # failures that the run survives; one more ends it
    patience: float = 60.0  # seconds without any report after which the ranks that wait for nobody count as hanging

    def __post_init__(self) -> None:
        if self.on_failure not in ON_FAILURE:
            raise ValueError(f"--on-failure must be one of {', '.join(ON_FAILURE)}, got {self.on_failure}")
        if self.max_restarts < 0:
            raise ValueError(f"--max-restarts must not be negative, got {self.max_restarts}")
        if not self.patience > 0:
            raise ValueError(f"--patience must be more than 0 seconds, got {self.patience:g}")


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

    A fault that has struck does not strike again. Other faults number ranks by the layout that the run has by then.

    Args:
        on_step, rank_function, on_event: see ``run``.
        on_interruption: called before the run goes on, when the time that this takes is not known yet.
        start: function that makes the Cluster.

    Returns:
        The run's last attempt, and the interruptions before it.

    Raises:
        ValueError: for a run that saves nothing, or a folder that cannot take its checkpoints.
        RankFailed, Deadlock, Hang: for a failure that a restart does not cure.
        RuntimeError: if no rank is left, or there were too many failures.
    """
    if options.saving is None and options.peer_copies is None:
        raise ValueError(
            "elastic training needs checkpoints or copies to go on from: add --save DIR or --peer-copies 1"
        )
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
                    options = go_back(cluster, options, origin, not_after, before, patience)
                    attempt.verified = before.resumed  # later steps are computed anew, by the ranks that are left
                    if options.live is not None:
                        cancel_orders(options.live)
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
                shrinks = elasticity.on_failure == "shrink"
                left -= len(failed.ranks) * shrinks
                if left < 1:
                    raise RuntimeError(f"{failed.why}, and no rank is left to go on") from error
                if len(interruptions) == elasticity.max_restarts:
                    allowed = f"--max-restarts {elasticity.max_restarts} allows no further restart"
                    raise RuntimeError(f"{failed.why}, and {allowed}") from error
                if shrinks:
                    layout = failed.after = best_layout(config, layout, left)
                verified = attempt.verified
                # a rank may die after a number went wrong and before a check finds it
                unsure = options.check_replicas or kind_of(error) == "CorruptedNumbers"
                not_after = verified if unsure else None
                options = replace(options, faults=tuple(f for f in options.faults if f not in attempt.struck))
                options, lost = without_what_cannot_be(options, config, layout)
                for why in lost:
                    on_event(0, ("note", f"going on without this: {why}"))
                interruptions.append(failed)
                staying = len(set(cluster.survivors) - set(failed.ranks))
                cluster.regroup(staying or layout.world_size, without=failed.ranks)
