"""The training loop around the step: from a config and a layout to what every rank brings back."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite
from pathlib import Path

import numpy as np

from minidist import backend
from minidist.comm.group import ProcessGroup
from minidist.comm.nccl.stream import find_gpus, own_gpus
from minidist.comm.placement import place_on_nodes
from minidist.comm.point_to_point import barrier
from minidist.comm.runtime.launch import Cluster
from minidist.nn.optim.clip import NotFinite
from minidist.nn.precision.policy import autocast, policy_of
from minidist.nn.precision.underflow import GradScaler
from minidist.nn.tokenizer import TOKENIZER
from minidist.parallel.tools.messages import first_text, global_max
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.folder import own_folder
from minidist.train.checkpoint.hugging_face import begin_from
from minidist.train.checkpoint.manifest import Manifest, manifest_of
from minidist.train.checkpoint.peers import Peers, forget, recover
from minidist.train.checkpoint.restore import Files, restore
from minidist.train.checkpoint.saver import Saver, Snapshots
from minidist.train.config import TrainConfig
from minidist.train.fingerprint import fingerprint
from minidist.train.hooks import Digests, StepHook
from minidist.train.layout import Layout
from minidist.train.loader import Loader
from minidist.train.measuring.evaluate import Evaluation
from minidist.train.measuring.instruments import Instruments, Live, Reports, traced_from
from minidist.train.measuring.noise_scale import NoiseScales
from minidist.train.resilience.checks import ReplicaChecks
from minidist.train.resilience.faults import Faults
from minidist.train.resilience.rebalance import Rebalance
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.rules import check, of_options
from minidist.train.share import Share
from minidist.train.step import take_step

MIN_SCALE = 2.0**-24  # of the loss: gradients that overflow below it do so at any scale


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
    """Train on the ranks of a cluster.

    With ``options.progress``, ``on_step(step, loss)`` is called in this process when rank 0 ends a step.

    A run that saves checkpoints claims their folder until it ends (checkpoint/folder.py).

    ``rank_function`` runs in place of ``train_rank``: tests inject a bug into the ranks with it.

    ``on_event(rank, event)`` is called for each report of a rank: with ``options.progress`` ("ready", step) before a
    rank takes its first step, and at the end of each step ("step", step, loss, seconds of computing) and ("pace", step,
    seconds of computing for one of its micro-batches); with ``options.live`` ("moment", instruments.Moment) a few times
    a second; ("saved", checkpoint, "" or why there is none); ("fault", fault); ("flipped", array, index, before,
    after); ("verified", step) from rank 0; ("corrupted", finding); ("note", text) for people.

    With ``options.progress`` rank 0 also reports ("evaluating",) before each forward pass of the trained model.

    ``patience`` is passed to ``Cluster.run``; use it with ``options.progress``, so that ranks report every step.

    Raises:
        TypeError: if ``layout`` is not a Layout.
        ValueError: if the config, layout, options and cluster do not fit together, or the folder is not free.
        Other errors: see ``Cluster.run``.
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"layout must be a Layout, not {layout!r}: Layout.parse reads text such as 'dp=2,tp=2'")
    with own_folder(options.saving and options.saving.folder, options.resume) as problem:
        if problem:
            on_event(0, ("note", problem))
        return run_in_folder(cluster, config, layout, options, on_step, rank_function, on_event, patience)


def run_in_folder(
    cluster: Cluster, config: TrainConfig, layout: Layout, options: RunOptions,
    on_step: Callable[[int, float], None] | None, rank_function: Callable | None,
    on_event: Callable[[int, tuple], None], patience: float | None,
) -> Run:  # fmt: skip
    """Train as ``run`` does, in a folder that this run has already claimed."""
    config.check(layout)
    check(of_options(config, layout, options))
    if cluster.world_size != layout.world_size:
        raise ValueError(f"layout {layout} needs {layout.world_size} ranks, but the cluster has {cluster.world_size}")
    started = time.perf_counter()

    def on_report(rank: int, event) -> None:
        on_event(rank, event)
        if on_step is not None and rank == 0 and event[0] == "step":
            on_step(*event[1:3])

    ranks = cluster.run(rank_function or train_rank, config, layout, options, patience=patience, on_report=on_report)
    return Run(layout, config, ranks, time.perf_counter() - started)


def train_rank(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, hooks: Sequence[StepHook] = ()
) -> RankResult:
    """Run one rank's part of a training run. ``hooks`` are called outside those that the options ask for."""
    backend.use(config.backend, world.local_rank)
    find_gpus(world)
    policy = policy_of(config.precision, config.products)
    with autocast(policy), np.errstate(over="ignore", invalid="ignore"):  # divergence raises its own error
        return _train_rank(world, config, layout, options, hooks)


def _train_rank(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, hooks: Sequence[StepHook]
) -> RankResult:
    if layout.node_size:
        place_on_nodes(world, layout.node_size, options.links)
    manifest = Manifest.read(Disk(), Path(options.resume)) if options.resume else None
    first = manifest.progress.step if manifest else options.recover or 0
    instruments = Instruments(world, traced_from(first, config, layout) if options.trace else None)
    share = Share.of(world, config, layout)
    if options.progress and world.rank == 0 and share.corpus.note:
        world.report(("note", share.corpus.note))
    restored = restore_state(share, options, manifest)
    hooks = [*hooks, *hooks_around(share, options, instruments)]
    model, scaler, loss_sums = share.model, share.scaler, []

    for hook in hooks:
        hook.begin_run(share)
    for step in range(first, config.steps):
        last = step in (config.steps - 1, options.stop_after) or asked_to_stop(options.stop_file, world)
        for hook in hooks:
            hook.begin_step(step, last)
        with diverging(step, scaler, None if model.steps_apart else world):
            loss = take_step(share, step)
            if not isfinite(loss):  # a lower scale of the loss would not help
                raise FloatingPointError(f"the loss is {loss}. A lower learning rate or a longer warmup may help")
        share.losses.append(loss)
        loss_sums.append(model.loss_sum)
        for hook in reversed(hooks):
            hook.end_step(step, loss, last)
        if last:
            break
    measured = restored
    for hook in reversed(hooks):
        measured |= hook.end_run()
    losses = model.join_losses(share.losses, loss_sums)
    return RankResult(
        losses,
        fingerprint(share.gpt, share.optimizer, losses, model.full_state),
        loss_scale=scaler.scale,
        skipped_steps=scaler.skipped,
        pushes=list(share.pushes),
        gpu=backend.gpu_model(backend.xp.module),
        by_nccl=own_gpus(world),
        **measured,
    )


def asked_to_stop(file: str | None, world: ProcessGroup) -> bool:
    """Return whether the file exists, the same on all ranks, even if it appears while they look."""
    return file is not None and bool(global_max(int(Path(file).exists()), world))


def restore_state(share: Share, options: RunOptions, manifest: Manifest | None) -> dict:
    """Put the state that a run resumes from into this rank's share of it. All ranks call it together.

    Args:
        options: the run's options, which name the source of the state: a checkpoint (with its manifest), the ranks'
            memory, another program's files with weights alone, or none.

    Returns:
        Bytes read and seconds taken, under the names of ``RankResult``'s fields.
    """
    world = share.world
    if options.recover is None:
        forget(world)
        if manifest is None:
            if options.init_from is not None:
                begin_from(Path(options.init_from), share)
            return {}
    barrier(world)  # so that waiting for a rank that starts late does not count as reading
    began, bytes_read = time.perf_counter(), 0
    if manifest is not None and options.resume is not None:
        with Files(Path(options.resume)) as files:
            share.losses += restore(manifest, files.read, share).losses
        bytes_read = files.bytes_read
    elif options.recover is not None:
        share.losses += recover(world, options.recover, share).losses
    return {"bytes_read": bytes_read, "restore_seconds": time.perf_counter() - began}


def hooks_around(share: Share, options: RunOptions, instruments: Instruments) -> list[StepHook]:
    """Return the hooks that the options ask for, in the order in which they begin before a step.

    All ranks call it together, after ``restore_state``.
    """
    world = share.world
    hooks: list[StepHook] = [Evaluation(options)]
    if options.loader:
        hooks.append(Loader(share.config, options.loader))
    if options.rebalance:
        hooks.append(Rebalance(share, instruments.micro_batch_seconds))
    keepers: list[Saver | Peers] = []
    if options.peer_copies is not None:
        keepers.append(Peers(world, options.peer_copies, Snapshots(share), str(share.layout)))
    if options.saving is not None:
        manifest = partial(manifest_of, share.config, share.layout, share.corpus)
        content = share.corpus.tokenizer.content
        keepers.append(Saver(
            world, options.saving, Snapshots(share), manifest, len(share.losses),
            lambda *saved: world.report(("saved", *saved)), beside={TOKENIZER: content} if content else None,
        ))  # fmt: skip
    hooks += keepers
    if options.check_replicas:  # at the end of a step it comes before the keepers
        hooks.append(ReplicaChecks(share, options.check_replicas, options.check_by, keepers))
    if options.progress:
        hooks.append(Reports(world, instruments))
    if options.step_digests:
        hooks.append(Digests())
    if options.faults or options.live:
        hooks.append(Faults(options.faults, world, options.live))
    if options.noise_scale:
        hooks.append(NoiseScales(options.noise_scale))
    hooks.append(instruments)
    if options.live:
        hooks.append(Live(world, instruments.memory))
    return hooks


@contextmanager
def diverging(step: int, scaler: GradScaler, world: ProcessGroup | None) -> Iterator[None]:
    """Context manager: raise FloatingPointError, naming the step, if the gradients inside allow no update.

    Args:
        world: all ranks, which fail together; None if ranks step apart.
    """
    scale, skipped = scaler.scale, scaler.skipped
    try:
        yield
    except NotFinite as error:  # on every rank, because the norm spans all of them: so they can agree on the text
        found = str(error) if world is None else first_text(error.found, world)
        raise FloatingPointError(f"training diverged in step {step}: {found}") from None
    except FloatingPointError as error:
        raise FloatingPointError(f"training diverged in step {step}: {error}") from None
    if scaler.skipped > skipped and scale < MIN_SCALE:
        raise FloatingPointError(
            f"training diverged in step {step}: gradients overflow even at a loss scale of {scale:g}. A lower learning "
            "rate may help"
        )
