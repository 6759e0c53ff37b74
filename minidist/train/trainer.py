"""The training loop around the step: from a config and a layout to what every rank brings back."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from math import isfinite

import numpy as np

from minidist import backend
from minidist.comm.group import ProcessGroup
from minidist.comm.mesh import init_device_mesh
from minidist.comm.runtime.launch import Cluster
from minidist.nn.clip import NotFinite
from minidist.nn.data import load_corpus
from minidist.nn.gpt import GPT, generate
from minidist.nn.optim import AdamW, warmup_cosine
from minidist.nn.precision.loss_scaling import GradScaler, grad_scaler
from minidist.nn.precision.policy import POLICIES, autocast
from minidist.parallel.tools.scalars import first_text
from minidist.train.batches import batch_of
from minidist.train.config import TrainConfig
from minidist.train.evaluate import full_model, validation_loss
from minidist.train.fingerprint import digest, fingerprint, state
from minidist.train.instruments import TRACED_STEPS, Instruments
from minidist.train.layout import Layout
from minidist.train.parallelize import parallelize
from minidist.train.result import RankResult, Run, RunOptions
from minidist.train.step import train_step

MIN_SCALE = 2.0**-24  # of the loss: gradients that overflow with less do so whatever the scale


def run(
    cluster: Cluster,
    config: TrainConfig,
    layout: Layout,
    options: RunOptions = RunOptions(),  # noqa: B008  frozen
    on_step: Callable[[int, float], None] | None = None,
    rank_function: Callable | None = None,
) -> Run:
    """Train on the ranks of a cluster; ``on_step(step, loss)`` is called in this process as rank 0 ends each step.

    ``rank_function`` runs in place of ``train_rank``: tests inject a bug into the ranks with it.
    """
    config.check(layout)
    if cluster.world_size != layout.world_size:
        raise ValueError(f"layout {layout} needs {layout.world_size} ranks, but the cluster has {cluster.world_size}")
    started = time.perf_counter()
    on_report = None if on_step is None else lambda rank, report: on_step(*report)
    ranks = cluster.run(rank_function or train_rank, config, layout, options, on_report=on_report)
    return Run(layout, config, ranks, time.perf_counter() - started)


def train_rank(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    """One rank's part of a training run."""
    backend.use(config.backend, world.rank)
    with autocast(config.precision), np.errstate(over="ignore", invalid="ignore"):  # divergence has an error of its own
        return _train_rank(world, config, layout, options)


def _train_rank(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    corpus = load_corpus(config.text, config.context)
    gpt = GPT(config.model, seed=config.seed)
    instruments = Instruments(world, max(0, config.steps - TRACED_STEPS) if options.trace else None)
    sizes = (layout.pp, layout.dp, layout.cp, layout.tp)
    mesh = init_device_mesh(sizes, mesh_dim_names=("pp", "dp", "cp", "tp"), group=world)
    model = parallelize(gpt, mesh, layout, config)
    optimizer = AdamW(model.trained, config.lr, weight_decay=config.weight_decay)
    scaler = loss_scaler(config)
    instruments.begin(model, optimizer)

    losses, digests, expert_counts = [], [], []
    for step in range(config.steps):
        batch = partial(batch_of, corpus, config, step)
        lr = warmup_cosine(step, config.steps, config.lr, config.warmup, config.lr / 10)
        with instruments.step(step), diverging(step, scaler, world):
            losses.append(train_step(model, optimizer, scaler, batch, lr, config.clip))
        check_loss(step, losses[-1])
        if gpt.balance is not None:
            expert_counts.append(gpt.balance.report())
        if options.step_digests:
            digests.append(digest(gpt, optimizer, model.full_state).hexdigest())
        if options.progress and world.rank == 0:
            world.report((step, losses[-1]))
        if options.stop_after == step:
            break

    measured = instruments.end()
    result = RankResult(
        losses,
        fingerprint(gpt, optimizer, losses, model.full_state),
        digests,
        loss_scale=scaler.scale,
        skipped_steps=scaler.skipped,
        expert_counts=expert_counts,
        **measured,
    )
    if options.stop_after is not None:
        arrays = state(gpt, optimizer, model.full_state)
        result.arrays = {name: backend.to_host(array).copy() for name, array in arrays.items()}
    if options.validate or options.sample:
        weights = model.full_state({parameter.name: parameter.data for parameter in model.trained})
        if world.rank == 0:
            trained = full_model(config, weights, gpt.balance)
            if options.validate:
                result.validation_loss = validation_loss(trained, corpus, config)
            if options.sample:
                result.sample = generate(trained, b"The ", options.sample, seed=config.seed)
    return result


def loss_scaler(config: TrainConfig) -> GradScaler:
    """What scales the loss: one that does nothing where no gradient is too small for the precision."""
    if not POLICIES[config.precision].scales_loss:
        return GradScaler(enabled=False)
    if config.loss_scale:
        return grad_scaler(init_scale=config.loss_scale, growth_interval=0)
    return grad_scaler()


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
