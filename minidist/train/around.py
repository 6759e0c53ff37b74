"""What a run may be asked for beside its steps: to go on from a state, to save, to copy, to check, to rebalance.

The loop in trainer.py calls it before the first step and after each. What nobody asked for is not there.
"""

import time
from functools import partial
from pathlib import Path

from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import barrier
from minidist.nn.data import Corpus
from minidist.train.checkpoint.identity import manifest_of
from minidist.train.checkpoint.manifest import Manifest, Progress
from minidist.train.checkpoint.peers import Peers, forget
from minidist.train.checkpoint.recovery import recover
from minidist.train.checkpoint.restore import Files, restore
from minidist.train.checkpoint.saver import Saver
from minidist.train.checkpoint.snapshot import Snapshots
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.replicas.checks import ReplicaChecks
from minidist.train.replicas.replay import TakeStep
from minidist.train.resilience.rebalance import Rebalance
from minidist.train.result import RunOptions
from minidist.train.share import Share


class Restored:
    """The state that a run goes on from, put into this rank's share of it. All ranks make one together.

    Args:
        world: all ranks.
        options: which say where the state is: in a checkpoint, in the ranks' memory, or nowhere.
        manifest: of the checkpoint, if there is one.
        share: of the run as it begins; changed in place.

    Attributes:
        losses: of the steps before.
        bytes_read: from files.
        seconds: that it took.
    """

    def __init__(self, world: ProcessGroup, options: RunOptions, manifest: Manifest | None, share: Share) -> None:
        self.losses, self.bytes_read, self.seconds = [], 0, 0.0
        if options.recover is None:
            forget(world)
        if manifest is None and options.recover is None:
            return
        barrier(world)  # so that no wait for a rank that has just started counts as reading
        began = time.perf_counter()
        if manifest is not None:
            with Files(Path(options.resume)) as files:
                self.losses += restore(manifest, files.read, share).losses
            self.bytes_read = files.bytes_read
        else:
            self.losses += recover(world, options.recover, share).losses
        self.seconds = time.perf_counter() - began


class Around:
    """What one rank does between the steps of a run. All ranks call it together.

    Args:
        world, config, layout, options, corpus: of the run.
        share: of this rank.
        take_step: the step of this run, for whoever computes it again.
        losses: of the steps before the first; the list to which each step adds its own.
    """

    def __init__(
        self, world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, share: Share,
        corpus: Corpus, take_step: TakeStep, losses: list[float],
    ) -> None:  # fmt: skip
        self.share, self.losses, first = share, losses, len(losses)
        self.saver = self.peers = self.checks = self.rebalance = None
        if options.peer_copies is not None:
            self.peers = Peers(world, options.peer_copies, Snapshots(world, share), str(layout))
            if first:
                self.peers.take(self.progress)  # at once: what is left of a ring has lost some copies
        if options.saving is not None:
            manifest = partial(manifest_of, config, layout, corpus)
            snapshots = Snapshots(world, share)
            self.saver = Saver(
                world, options.saving, snapshots, manifest, first, lambda *saved: world.report(("saved", *saved))
            )
        if options.check_replicas:
            every, way = options.check_replicas, options.check_by
            self.checks = ReplicaChecks(world, config, layout, share, every, way, take_step, first)
            self.keep_verified()
        if options.rebalance:
            self.rebalance = Rebalance(world, layout, config, share.model)

    @property
    def progress(self) -> Progress:
        """How far the run is."""
        return Progress.of(self.losses, self.share.optimizer, self.share.scaler)

    def after_step(self, step: int, seconds: float, last: bool) -> None:
        """A step has ended, in which this rank computed for so many seconds for each of its micro-batches."""
        if self.checks is not None:
            self.checks.after_step(step, self.losses[-1], last)  # before a checkpoint of it is saved
            self.keep_verified()
        if self.saver is not None:
            self.saver.after_step(self.progress, last)
        if self.peers is not None and not last:
            self.peers.after_step(self.progress)
        if self.rebalance is not None and not last:
            self.rebalance.after_step(seconds)

    def keep_verified(self) -> None:
        """What the last check found right is kept until the next: a failure between them goes back to it."""
        for keeper in filter(None, (self.saver, self.peers)):
            keeper.verified = self.checks.verified + 1

    def measured(self) -> dict:
        """What it cost, under the names of ``RankResult``'s fields."""
        return {
            "pauses": self.saver.pauses if self.saver else [],
            "save_errors": self.saver.errors if self.saver else [],
            "copy_pauses": self.peers.pauses if self.peers else [],
        }
