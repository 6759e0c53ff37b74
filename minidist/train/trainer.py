"""The training loop around the step: from a config and a layout to what every rank brings back."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import isfinite
from pathlib import Path

import numpy as np

from minidist import backend
from minidist.comm.group import ProcessGroup
from minidist.comm.point_to_point import barrier
from minidist.comm.runtime.launch import Cluster
from minidist.nn.clip import NotFinite
from minidist.nn.data import Corpus, load_corpus
from minidist.nn.gpt import generate
from minidist.nn.optim import warmup_cosine
from minidist.nn.precision.loss_scaling import GradScaler
from minidist.nn.precision.policy import autocast
from minidist.parallel.tools.scalars import first_text
from minidist.train.batches import batch_of
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.identity import manifest_of
from minidist.train.checkpoint.manifest import Manifest, Progress
from minidist.train.checkpoint.peers import Peers, forget
from minidist.train.checkpoint.recovery import recover
from minidist.train.checkpoint.restore import Files, restore
from minidist.train.checkpoint.saver import Saver
from minidist.train.checkpoint.snapshot import Snapshots
from minidist.train.config import TrainConfig
from minidist.train.evaluate import full_model, validation_loss
from minidist.train.faults import Faults
from minidist.train.fingerprint import digest, fingerprint, state
from minidist.train.instruments import TRACED_STEPS, Instruments
from minidist.train.layout import Layout
from minidist.train.rebalance import Rebalance, check_rebalance
from minidist.train.replicas.checks import ReplicaChecks
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.share import Share
from minidist.train.step import train_step

MIN_SCALE = 2.0**-24  # of the loss: gradients that overflow with less do so whatever the scale


def run(
    cluster: Cluster,
    config: TrainConfig,
    layout: Layout,
    options: RunOptions = RunOptions(),  # noqa: B008  frozen
    on_step: Callable[[int, float], None] | None = None,
    rank_function: Callable | None = None,
    on_event: Callable[[int, tuple], None] = lambda rank, event: None,
    patience: float | None = None,
) -> Run:
    """Train on the ranks of a cluster; ``on_step(step, loss)`` is called in this process as rank 0 ends each step.

    ``rank_function`` runs in place of ``train_rank``: tests inject a bug into the ranks with it.

    ``on_event(rank, event)`` is called for what else ranks report: with ``options.progress`` ("ready", step) as a rank
    is about to take its first step, and as it ends each step ("step", step, loss, seconds of computing) and ("pace",
    step, seconds of computing for one of its micro-batches); ("saved", checkpoint, "" or why there is none); ("fault",
    fault); ("flipped", array, index, before, after); ("verified", step) from rank 0; ("corrupted", finding).

    ``patience`` is that of ``Cluster.run``; give it with ``options.progress``.
    """
    config.check(layout)
    if options.rebalance:
        check_rebalance(layout)
    if cluster.world_size != layout.world_size:
        raise ValueError(f"layout {layout} needs {layout.world_size} ranks, but the cluster has {cluster.world_size}")
    if options.check_by == "vote" and layout.world_size == 1:
        raise ValueError("--check-by vote compares ranks, and there is one: choose auto or replay")
    started = time.perf_counter()

    def on_report(rank: int, event: tuple) -> None:
        on_event(rank, event)
        if on_step is not None and rank == 0 and event[0] == "step":
            on_step(*event[1:3])

    ranks = cluster.run(rank_function or train_rank, config, layout, options, patience=patience, on_report=on_report)
    return Run(layout, config, ranks, time.perf_counter() - started)


def train_rank(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """One rank's part of a training run."""
    backend.use(config.backend, world.rank)
    with autocast(config.precision), np.errstate(over="ignore", invalid="ignore"):  # divergence has an error of its own
        return _train_rank(world, config, layout, options)


def _train_rank(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    corpus = load_corpus(config.text, config.context)
    manifest = Manifest.read(Disk(), Path(options.resume)) if options.resume else None
    first = manifest.progress.step if manifest else options.recover or 0
    instruments = Instruments(world, max(first, config.steps - TRACED_STEPS) if options.trace else None)
    share = Share.of(world, config, layout)
    model, optimizer, scaler = share.model, share.optimizer, share.scaler
    losses, digests, expert_counts = [], [], []
    if first:
        barrier(world)  # so that no wait for a rank that has just started counts as reading
    began = time.perf_counter()
    with Files(Path(options.resume or "")) as files:
        if manifest is not None:
            losses += restore(manifest, files.read, share).losses
    if options.recover is None:
        forget(world)
    else:
        losses += recover(world, options.recover, share).losses
    restore_seconds = time.perf_counter() - began
    peers = peers_of(world, layout, options, share)
    if peers is not None and first:
        peers.take(Progress.of(losses, optimizer, scaler))  # at once: what is left of a ring has lost some copies
    saver = saver_of(world, config, layout, options, share, corpus)
    faults = Faults(options.faults, world, share)
    rebalance = Rebalance(world, layout, config, model) if options.rebalance else None
    instruments.begin(model, optimizer)
    if options.progress:
        world.report(("ready", first))

    def take_step(share: Share, step: int, batch: Callable[[int], tuple] | None = None) -> float:
        lr = warmup_cosine(step, config.steps, config.lr, config.warmup, config.lr / 10)
        batch = batch or partial(batch_of, corpus, config, step)
        return train_step(share.model, share.optimizer, share.scaler, batch, lr, config.clip)

    checks = checks_of(world, config, layout, options, share, take_step, first)

    for step in range(first, config.steps):
        last = step in (config.steps - 1, options.stop_after)
        batch = faults.begin_step(step, partial(batch_of, corpus, config, step))
        with instruments.step(step), diverging(step, scaler, world):
            losses.append(take_step(share, step, batch))
        check_loss(step, losses[-1])
        if share.gpt.balance is not None:
            expert_counts.append(share.gpt.balance.report())
        if options.step_digests:
            digests.append(digest(share.gpt, optimizer, model.full_state).hexdigest())
        if options.progress:
            world.report(("step", step, losses[-1], instruments.compute_seconds[-1]))
            world.report(("pace", step, instruments.micro_batch_seconds[-1]))
        if checks is not None:
            checks.after_step(step, losses[-1], last)  # before a checkpoint of it is saved
        if saver is not None:
            saver.after_step(Progress.of(losses, optimizer, scaler), last)
        if peers is not None and not last:
            peers.after_step(Progress.of(losses, optimizer, scaler))
        if last:
            break
        if rebalance is not None:
            rebalance.after_step(instruments.micro_batch_seconds[-1])

    measured = instruments.end()
    result = RankResult(
        losses,
        fingerprint(share.gpt, optimizer, losses, model.full_state),
        digests,
        loss_scale=scaler.scale,
        skipped_steps=scaler.skipped,
        expert_counts=expert_counts,
        pauses=saver.pauses if saver else [],
        save_errors=saver.errors if saver else [],
        copy_pauses=peers.pauses if peers else [],
        bytes_read=files.bytes_read,
        restore_seconds=restore_seconds,
        **measured,
    )
    if options.stop_after is not None:
        arrays = state(share.gpt, optimizer, model.full_state)
        result.arrays = {name: backend.to_host(array).copy() for name, array in arrays.items()}
    if options.validate or options.sample:
        weights = model.full_state({parameter.name: parameter.data for parameter in model.trained})
        if world.rank == 0:
            trained = full_model(config, weights, share.gpt.balance)
            if options.validate:
                result.validation_loss = validation_loss(trained, corpus, config)
            if options.sample:
                result.sample = generate(trained, b"The ", options.sample, seed=config.seed)
    return result


def saver_of(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, share: Share, corpus: Corpus
) -> Saver | None:
    """What saves this run's checkpoints; None if nobody asked for any."""
    if options.saving is None:
        return None
    manifest = partial(manifest_of, config, layout, corpus)
    return Saver(
        world, options.saving, Snapshots(world, share), manifest, lambda *saved: world.report(("saved", *saved))
    )


def peers_of(world: ProcessGroup, layout: Layout, options: RunOptions, share: Share) -> Peers | None:
    """What keeps this run's snapshots in memory; None if nobody asked for any."""
    if options.peer_copies is None:
        return None
    return Peers(world, options.peer_copies, Snapshots(world, share), str(layout))


def checks_of(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, share: Share, take_step: Callable,
    first: int,
) -> ReplicaChecks | None:  # fmt: skip
    """What checks this run's numbers; None if nobody asked for it."""
    if not options.check_replicas:
        return None
    return ReplicaChecks(world, config, layout, share, options.check_replicas, options.check_by, take_step, first)


@contextmanager
def diverging(step: int, scaler: GradScaler, world: ProcessGroup) -> Iterator[None]:
    """Raises FloatingPointError, naming the step, where the step within finds gradients that no update can follow."""
    scale, skipped = scaler.scale, scaler.skipped
    try:
        yield
    except NotFinite as error:  # on every rank, because the norm is joined over all of them: so they can agree
        raise FloatingPointError(f"training diverged in step {step}: {first_text(error.found, world)}") from None
    except FloatingPointError as error:
        raise FloatingPointError(f"training diverged in step {step}: {error}") from None
    if scaler.skipped > skipped and scale < MIN_SCALE:
        raise FloatingPointError(
            f"training diverged in step {step}: gradients overflow in {scale:g} of their size. A lower learning "
            "rate may help"
        )


def check_loss(step: int, loss: float) -> None:
    """Raises FloatingPointError where the loss is not finite: a lower scale of the loss would not help."""
    if not isfinite(loss):
        raise FloatingPointError(
            f"training diverged in step {step}: the loss is {loss}. A lower learning rate or a longer warmup may help"
        )
