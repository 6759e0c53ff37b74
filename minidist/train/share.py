"""One rank's share of a run: the objects that a step changes and a checkpoint holds, and its micro-batches.

With parameter servers the first ranks are workers, and the last ones servers, which have no micro-batches.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf, prod

import numpy as np

from minidist import backend, trace
from minidist.comm.group import ProcessGroup
from minidist.comm.mesh import init_device_mesh
from minidist.data.packing import RANDOM
from minidist.data.samples import DocumentCorpus, open_corpus
from minidist.nn.data import Corpus, MicroBatch, load_corpus, micro_batch
from minidist.nn.gpt import GPT
from minidist.nn.models import model_of
from minidist.nn.optim.lamb import LAMB
from minidist.nn.optim.optimizers import SGD, AdamW, Optimizer
from minidist.nn.precision.policy import POLICIES
from minidist.nn.precision.underflow import GradScaler, grad_scaler
from minidist.nn.random import DropoutRNG
from minidist.parallel.data import share_of
from minidist.parallel.loosened.arrivals import read_arrivals, seeded_order
from minidist.parallel.loosened.local import LocalSGD
from minidist.parallel.loosened.server import AsynchronousServer, Push, SynchronousServer, Worker
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.parallelize import ParallelModel, deal_micro_batches, parallelize


@dataclass
class Share:
    """One rank's share of a run: what it trains, and with which settings.

    Attributes:
        world: all ranks of the run; this rank's place in it determines its share.
        config, layout, corpus: the run's settings and text.
        model: this rank's share of the model, and of the work of a step.
        optimizer: optimizer of ``model.trained``.
        scaler: loss scaler; no-op except for fp16.
        max_norm: the largest global gradient norm.
        losses: loss of each step so far, the mean over the global batch.
        pushes: the gradients that a parameter server has applied, in order; empty on other ranks.
        prepared: function from a step and the numbers of its micro-batches to those that a loader has prepared in host
            memory; None without a loader.
        on_local_gradients: callback of ``train_step``.
    """

    world: ProcessGroup
    config: TrainConfig
    layout: Layout
    corpus: Corpus | DocumentCorpus
    model: ParallelModel
    optimizer: Optimizer
    scaler: GradScaler
    max_norm: float
    losses: list[float] = field(default_factory=list)
    pushes: Sequence[Push] = ()
    prepared: Callable[[int, Sequence[int | None]], Sequence[MicroBatch]] | None = None
    on_local_gradients: Callable[[], None] = lambda: None

    @classmethod
    def of(cls, world: ProcessGroup, config: TrainConfig, layout: Layout) -> "Share":
        """Return this rank's share of a new run. All ranks call it together."""
        if layout.servers:
            model = served_model(world, config, layout)
        else:
            sizes = (layout.pp, layout.dp, layout.cp, layout.tp)
            mesh = init_device_mesh(sizes, mesh_dim_names=("pp", "dp", "cp", "tp"), group=world)
            model = parallelize(model_of(config.model, seed=config.seed), mesh, layout, config)
        optimizer, axis = optimizer_of(model, config), model.axes[0]
        corpus = corpus_of(config)
        share = world, config, layout, corpus, model, optimizer, loss_scaler(config)
        if isinstance(axis, AsynchronousServer):  # workers have clipped what they push
            return AsynchronousShare(*share, inf, pushes=axis.pushes_taken)
        if isinstance(axis, SynchronousServer):
            return Share(*share, config.clip, pushes=axis.pushes_taken)
        if isinstance(axis, LocalSGD):
            axis.begin(optimizer)
        return Share(*share, config.clip)

    @property
    def gpt(self) -> GPT:
        """The model, of which this rank may hold only a part."""
        return self.model.model

    def batch(self, step: int, numbers: Sequence[int | None]) -> list[MicroBatch]:
        """Return micro-batches of a step, by their numbers within it, on the device of ``xp``."""
        with trace.span("data"):
            if self.prepared is not None:
                return list(map(on_device, self.prepared(step, numbers)))
            return [on_device(batch_of(self.corpus, self.config, step, number)) for number in numbers]

    def learning_rates(self, lr: float) -> Iterable[float]:
        """Return the learning rate of each update in one step of the run: as a rule there is one."""
        return (lr,)


class AsynchronousShare(Share):
    """Share of a parameter server that updates with each gradient as it arrives."""

    def learning_rates(self, lr: float) -> Iterable[float]:
        """Return the learning rates of N updates, one for each worker: together they go as far as one with the mean."""
        workers = self.layout.dp
        return (lr / workers for _ in range(workers))


def optimizer_of(model: ParallelModel, config: TrainConfig) -> Optimizer:
    """Return a new optimizer of the parameters that this rank trains."""
    if config.optimizer == "adamw":
        return AdamW(model.trained, config.lr, weight_decay=config.weight_decay)
    if config.optimizer == "sgd":
        return SGD(model.trained, config.lr, weight_decay=config.weight_decay)
    sizes = {name: prod(shape) for name, shape in model.shapes.items()}
    joins = model.global_max, model.global_sum, model.owns
    return LAMB(model.trained, config.lr, sizes, *joins, weight_decay=config.weight_decay)


def loss_scaler(config: TrainConfig) -> GradScaler:
    """Return the loss scaler. It does nothing in a precision that holds the smallest gradients."""
    if not POLICIES[config.precision].scales_loss:
        return GradScaler(enabled=False)
    if config.loss_scale:
        return grad_scaler(init_scale=config.loss_scale, growth_interval=0)
    return grad_scaler()


def served_model(world: ProcessGroup, config: TrainConfig, layout: Layout) -> ParallelModel:
    """Return this rank's part of a run with parameter servers: the first ranks are workers, the last ones servers."""
    group, gpt, dtype = world.duplicate(), model_of(config.model, seed=config.seed), np.dtype(config.reduce_dtype)
    group.name = "server"
    if world.rank < layout.dp:
        count = len(share_of(group.rank, layout.dp, config.micro_batches))
        worker = Worker(group, layout.dp, config.steps, count, config.clip if layout.slack else None, dtype)
        deal = partial(deal_micro_batches, world.rank, layout.dp)
        return ParallelModel(gpt, group, [worker], deal, config.micro_batches)
    if layout.slack:  # workers may be at different steps
        seconds = read_arrivals(layout.arrivals, layout.dp)
        order = seeded_order(seconds, config.steps, layout.slack, config.seed) if seconds else None
        server = AsynchronousServer(group, layout.dp, config.steps, layout.slack, order)
    else:
        others = group.new_group(list(range(layout.dp, group.size)))
        server = SynchronousServer(group, layout.dp, config.steps, others, dtype)
    return ServedModel(gpt, group, [server], lambda _: (range(0), 0), config.micro_batches)  # it has no micro-batches


class ServedModel(ParallelModel):
    """The ``ParallelModel`` of a parameter server, which updates parameters and runs no micro-batches."""

    @property
    def averaged_micro_batches(self) -> int:
        """Number of micro-batches to average over: 1 if workers are asynchronous, and push averaged gradients."""
        return 1 if isinstance(self.axes[0], AsynchronousServer) else self.global_micro_batches


def corpus_of(config: TrainConfig) -> Corpus | DocumentCorpus:
    """Open the text that a run is trained on.

    Raises:
        ValueError: if it cannot be read, or does not fit the settings.
    """
    if config.packing == RANDOM or config.text is None:
        return load_corpus(config.text, config.context, config.tokenizer)
    alone, restart = bool(config.document_mask), bool(config.restart_positions)
    quantum = config.sequence_chunks * config.heads  # so that every layout can cut it: cp by chunks, sp by heads
    return open_corpus(config.text, config.context, config.packing, config.tokenizer, alone, restart, quantum)


def batch_of(corpus: Corpus | DocumentCorpus, config: TrainConfig, step: int, number: int | None) -> MicroBatch:
    """Return one micro-batch of a step, by its number within the step, in host memory.

    Without a number it has no samples, B = 0: a rank with fewer micro-batches takes part in the others' collectives.
    """
    if number is None:
        nothing = np.empty((0, config.context), np.uint8)
        return MicroBatch(nothing, nothing, None)
    first = number * config.micro_batch
    rng = DropoutRNG(config.seed, step, number)
    if isinstance(corpus, DocumentCorpus):
        first += config.samples_before(step)
        tokens, targets, documents = corpus.micro_batch(config.seed, first, config.micro_batch)
        return MicroBatch(tokens, targets, rng, documents)
    return MicroBatch(*micro_batch(corpus, config.seed, step, first, config.micro_batch, config.context), rng)


def on_device(micro_batch: MicroBatch) -> MicroBatch:
    """Return a micro-batch from host memory with its tokens and targets on the device of ``xp``."""
    tokens, targets = map(backend.from_host, micro_batch[:2])
    return micro_batch._replace(tokens=tokens, targets=targets)
