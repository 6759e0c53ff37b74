"""What a run may be asked for beside its steps: to go on from a state, to save, to check, to measure, to fail.

What nobody asked for is not there.
"""

import time
from functools import partial
from pathlib import Path

from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import barrier
from minidist.nn.data import Corpus
from minidist.train.batches import Batch
from minidist.train.checkpoint.identity import manifest_of
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checkpoint.peers import Peers, forget
from minidist.train.checkpoint.recovery import recover
from minidist.train.checkpoint.restore import Files, restore
from minidist.train.checkpoint.saver import Saver
from minidist.train.checkpoint.snapshot import Snapshots
from minidist.train.config import TrainConfig
from minidist.train.fingerprint import digest
from minidist.train.hooks import StepHook
from minidist.train.layout import Layout
from minidist.train.measuring.instruments import Instruments
from minidist.train.measuring.live import Live
from minidist.train.measuring.noise_scale import NoiseScales
from minidist.train.replicas.checks import ReplicaChecks
from minidist.train.replicas.replay import TakeStep
from minidist.train.resilience.faults import Faults
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
        bytes_read: from files.
        seconds: that it took.
    """

    def __init__(self, world: ProcessGroup, options: RunOptions, manifest: Manifest | None, share: Share) -> None:
        self.bytes_read, self.seconds = 0, 0.0
        if options.recover is None:
            forget(world)
        if manifest is None and options.recover is None:
            return
        barrier(world)  # so that no wait for a rank that has just started counts as reading
        began = time.perf_counter()
        if manifest is not None:
            with Files(Path(options.resume)) as files:
                share.losses += restore(manifest, files.read, share).losses
            self.bytes_read = files.bytes_read
        else:
            share.losses += recover(world, options.recover, share).losses
        self.seconds = time.perf_counter() - began


class Counts(StepHook):
    """Collects how many tokens each expert had in each step."""

    def begin_run(self, share: Share) -> None:
        self.balance, self.found = share.gpt.balance, []

    def end_step(self, step: int, loss: float, last: bool) -> None:
        if self.balance is not None:
            self.found.append(self.balance.report())

    def end_run(self) -> dict:
        return {"expert_counts": self.found}


class Digests(StepHook):
    """Hashes the weights and the optimizer's state after each step. All ranks do it together."""

    def begin_run(self, share: Share) -> None:
        self.share, self.found = share, []

    def end_step(self, step: int, loss: float, last: bool) -> None:
        share = self.share
        self.found.append(digest(share.gpt, share.optimizer, share.model.full_state).hexdigest())

    def end_run(self) -> dict:
        return {"step_digests": self.found}


class Reports(StepHook):
    """Tells the parent of each step."""

    def __init__(self, world: ProcessGroup, instruments: Instruments) -> None:
        self.world, self.instruments = world, instruments

    def begin_run(self, share: Share) -> None:
        self.model = share.model
        self.world.report(("ready", len(share.losses)))

    def end_step(self, step: int, loss: float, last: bool) -> None:
        self.world.report(("step", step, loss, self.instruments.compute_seconds[-1]))
        if self.model.micro_batches:  # a parameter server has none
            self.world.report(("pace", step, self.instruments.micro_batch_seconds[-1]))


def hooks_around(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, share: Share, corpus: Corpus,
    take_step: TakeStep, instruments: Instruments,
) -> list[StepHook]:  # fmt: skip
    """What this run is asked for, in the order in which it begins before a step. All ranks call it together.

    Args:
        world, config, layout, options, corpus: of the run.
        share: of this rank, with the state that the run goes on from.
        take_step: the step of this run, for whoever computes it again.
        instruments: which measure it.
    """
    hooks: list[StepHook] = []
    if options.rebalance:
        hooks.append(Rebalance(world, layout, config, share.model, instruments.micro_batch_seconds))
    keepers: list[Saver | Peers] = []
    if options.peer_copies is not None:
        keepers.append(Peers(world, options.peer_copies, Snapshots(world, share), str(layout)))
    if options.saving is not None:
        manifest = partial(manifest_of, config, layout, corpus)
        first = len(share.losses)
        keepers.append(
            Saver(
                world, options.saving, Snapshots(world, share), manifest, first,
                lambda *saved: world.report(("saved", *saved)),
            )
        )  # fmt: skip
    hooks += keepers
    if options.check_replicas:  # after a step, before a checkpoint of it is saved
        every, way = options.check_replicas, options.check_by
        hooks.append(ReplicaChecks(world, config, layout, share, every, way, take_step, keepers))
    if options.progress:
        hooks.append(Reports(world, instruments))
    if options.step_digests:
        hooks.append(Digests())
    hooks.append(Counts())
    if options.faults or options.live:
        hooks.append(Faults(options.faults, world, options.live))
    if options.noise_scale:
        numbers = range(config.micro_batches)
        batch_at = partial(Batch, corpus, config, numbers=numbers)
        hooks.append(NoiseScales(options.noise_scale, batch_at, config.micro_batch))
    hooks.append(instruments)
    if options.live:
        hooks.append(Live(world, instruments.memory))
    return hooks
