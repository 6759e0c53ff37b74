"""The training loop around the step: from a config and a layout to what every rank brings back."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import isfinite
from pathlib import Path

import numpy as np

from minidist import backend
from minidist.comm.group import ProcessGroup
from minidist.comm.nccl.routes import find_gpus, own_gpus
from minidist.comm.nodes.placement import place_on_nodes
from minidist.comm.runtime.launch import Cluster
from minidist.nn.data import load_corpus
from minidist.nn.gpt import generate
from minidist.nn.optim.clip import NotFinite
from minidist.nn.optim.optimizers import warmup_cosine
from minidist.nn.precision.policy import autocast
from minidist.nn.precision.underflow import GradScaler
from minidist.parallel.tools.messages import first_text
from minidist.train.around import Restored, hooks_around
from minidist.train.batches import Batch
from minidist.train.checkpoint.disk import Disk
from minidist.train.checkpoint.folder import own_folder
from minidist.train.checkpoint.manifest import Manifest
from minidist.train.checks.loosened import check_loosened_options
from minidist.train.config import TrainConfig
from minidist.train.fingerprint import fingerprint, state
from minidist.train.hooks import StepHook
from minidist.train.layout import Layout
from minidist.train.measuring.evaluate import full_model, validation_loss
from minidist.train.measuring.instruments import TRACED_STEPS, Instruments
from minidist.train.measuring.noise_scale import check_noise_scale
from minidist.train.measuring.peak import measured_peak
from minidist.train.resilience.rebalance import check_rebalance
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.served import served_share
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

    What is to be saved needs a folder of its own (checkpoint/folder.py), which this run claims until its end.

    ``rank_function`` runs in place of ``train_rank``: tests inject a bug into the ranks with it.

    ``on_event(rank, event)`` is called for what else ranks report: with ``options.progress`` ("ready", step) as a rank
    is about to take its first step, and as it ends each step ("step", step, loss, seconds of computing) and ("pace",
    step, seconds of computing for one of its micro-batches); with ``options.live`` ("moment", measuring.live.Moment)
    a few times a second; ("saved", checkpoint, "" or why there is none); ("fault",
    fault); ("flipped", array, index, before, after); ("verified", step) from rank 0; ("corrupted", finding); ("note",
    text) for people.

    As rank 0 runs the trained model it reports ("evaluating",) time and again.

    ``patience`` is that of ``Cluster.run``; give it with ``options.progress``.
    """
    with own_folder(options.saving and options.saving.folder, options.resume) as problem:
        if problem:
            on_event(0, ("note", problem))
        return run_in_folder(cluster, config, layout, options, on_step, rank_function, on_event, patience)


def run_in_folder(
    cluster: Cluster, config: TrainConfig, layout: Layout, options: RunOptions,
    on_step: Callable[[int, float], None] | None, rank_function: Callable | None,
    on_event: Callable[[int, tuple], None], patience: float | None,
) -> Run:  # fmt: skip
    """``run``, in a folder that is this run's own already."""
    config.check(layout)
    if options.rebalance:
        check_rebalance(layout, config)
    if options.noise_scale:
        check_noise_scale(config, layout)
    if cluster.world_size != layout.world_size:
        raise ValueError(f"layout {layout} needs {layout.world_size} ranks, but the cluster has {cluster.world_size}")
    if options.check_by == "vote" and layout.world_size == 1:
        raise ValueError("--check-by vote compares ranks, and there is one: choose auto or replay")
    started = time.perf_counter()

    def on_report(rank: int, event: tuple) -> None:
        on_event(rank, event)
        if on_step is not None and rank == 0 and event[0] == "step":
            on_step(*event[1:3])

    check_loosened_options(layout, options)
    ranks = cluster.run(rank_function or train_rank, config, layout, options, patience=patience, on_report=on_report)
    return Run(layout, config, ranks, time.perf_counter() - started)


def train_rank(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, hooks: Sequence[StepHook] = ()
) -> RankResult:
    """One rank's part of a training run.

    Args:
        world, config, layout, options: of the run.
        hooks: to stand around its steps, outside of those that the options ask for.
    """
    backend.use(config.backend, world.local_rank)
    find_gpus(world)
    with autocast(config.precision), np.errstate(over="ignore", invalid="ignore"):  # divergence has an error of its own
        return _train_rank(world, config, layout, options, hooks)


def _train_rank(
    world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions, hooks: Sequence[StepHook]
) -> RankResult:
    if layout.node_size:
        place_on_nodes(world, layout.node_size, options.links)
    corpus = load_corpus(config.text, config.context)
    manifest = Manifest.read(Disk(), Path(options.resume)) if options.resume else None
    first = manifest.progress.step if manifest else options.recover or 0
    instruments = Instruments(world, traced_from(first, config, layout) if options.trace else None)
    share = served_share(world, config, layout) if layout.servers else Share.of(world, config, layout)
    model, optimizer, scaler = share.model, share.optimizer, share.scaler
    restored = Restored(world, options, manifest, share)

    def take_step(share: Share, step: int, complete_gradients: Callable[[], None] = lambda: None) -> float:
        """Take a step of this run, by its number, on a share of it; return its loss."""
        model = share.model
        model.set_micro_batches(config.batch_at(step) // config.micro_batch)
        batch = Batch(corpus, config, step, model.micro_batches)
        lr = warmup_cosine(step, config.steps, config.lr, config.warmup, config.lr / 10)
        for rate in share.learning_rates(lr):
            loss = train_step(model, share.optimizer, share.scaler, batch, rate, share.max_norm, complete_gradients)
        return loss

    hooks = [*hooks, *hooks_around(world, config, layout, options, share, corpus, take_step, instruments)]

    def complete_gradients() -> None:
        for hook in hooks:
            hook.complete_gradients()

    for hook in hooks:
        hook.begin_run(share)
    loss_sums = []
    for step in range(first, config.steps):
        last = step in (config.steps - 1, options.stop_after)
        for hook in hooks:
            hook.begin_step(step)
        with diverging(step, scaler, None if model.steps_apart else world):
            loss = take_step(share, step, complete_gradients)
            check_loss(loss)
        share.losses.append(loss)
        loss_sums.append(model.loss_sum)
        for hook in reversed(hooks):
            hook.end_step(step, loss, last)
        if last:
            break

    measured = {}
    for hook in reversed(hooks):
        measured |= hook.end_run()
    losses = model.join_losses(share.losses, loss_sums)
    result = RankResult(
        losses,
        fingerprint(share.gpt, optimizer, losses, model.full_state),
        loss_scale=scaler.scale,
        skipped_steps=scaler.skipped,
        pushes=[push for axis in model.axes for push in axis.pushes_taken],
        gpu=backend.gpu_model(backend.xp.module),
        by_nccl=own_gpus(world),
        bytes_read=restored.bytes_read,
        restore_seconds=restored.seconds,
        **measured,
    )
    if options.measure_peak:
        result.peak_flops = measured_peak(world)
    if options.stop_after is not None:
        arrays = state(share.gpt, optimizer, model.full_state)
        result.arrays = {name: backend.to_host(array).copy() for name, array in arrays.items()}
    if options.validate or options.sample:
        weights = model.full_state({parameter.name: parameter.data for parameter in model.trained})
        if world.rank == 0:
            trained = full_model(config, weights, share.gpt.balance)
            if options.progress:  # it may take long, and silence would count as hanging
                trained.blocks[0].forward_pre_hook = lambda: world.report(("evaluating",))
            if options.validate:
                result.validation_loss = validation_loss(trained, corpus, config)
            if options.sample:
                result.sample = generate(trained, b"The ", options.sample, seed=config.seed)
    return result


def traced_from(first: int, config: TrainConfig, layout: Layout) -> int:
    """The first step of the trace. Where messages of one step go to another, a part of a run would lack some ends."""
    if layout.slack or layout.sync == "delayed":
        return first
    steps = max(TRACED_STEPS, layout.local_steps) if layout.sync == "local" else TRACED_STEPS  # a round of local steps
    return max(first, config.steps - steps)


@contextmanager
def diverging(step: int, scaler: GradScaler, world: ProcessGroup | None) -> Iterator[None]:
    """Raises FloatingPointError, naming the step, where the step within finds gradients that no update can follow.

    Args:
        world: all ranks, which find it together; None where each has a step of its own.
    """
    scale, skipped = scaler.scale, scaler.skipped
    try:
        yield
    except NotFinite as error:  # on every rank, because the norm is joined over all of them: so they can agree
        found = str(error) if world is None else first_text(error.found, world)
        raise FloatingPointError(f"training diverged in step {step}: {found}") from None
    except FloatingPointError as error:
        raise FloatingPointError(f"training diverged in step {step}: {error}") from None
    if scaler.skipped > skipped and scale < MIN_SCALE:
        raise FloatingPointError(
            f"training diverged in step {step}: gradients overflow in {scale:g} of their size. A lower learning "
            "rate may help"
        )


def check_loss(loss: float) -> None:
    """Raises FloatingPointError where the loss is not finite: a lower scale of the loss would not help."""
    if not isfinite(loss):
        raise FloatingPointError(f"the loss is {loss}. A lower learning rate or a longer warmup may help")
