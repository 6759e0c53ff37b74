"""The one training loop, for every layout, and what a run of it leaves behind."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from math import isfinite

import numpy as np

from minidist import backend, flops, ledger, overrides, trace
from minidist.backend import xp
from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.comm.mesh import init_device_mesh
from minidist.comm.runtime.launch import Cluster
from minidist.nn.clip import clip_grad_norm
from minidist.nn.data import load_corpus, micro_batch, validation_batches
from minidist.nn.gpt import GPT, generate
from minidist.nn.layers import Parameter
from minidist.nn.memory.recompute import recompute_blocks
from minidist.nn.optim import AdamW, average_gradients, warmup_cosine
from minidist.nn.precision.loss_scaling import GradScaler, grad_scaler
from minidist.nn.precision.policy import POLICIES, autocast
from minidist.nn.random import DropoutRNG
from minidist.nn.tensor import no_grad
from minidist.parallel.data import NaiveDataParallel, Replicated, bucketed_data_parallel, share_of
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tensor import TensorParallel, gpt_plan
from minidist.parallel.tools.schedule_check import check_schedule
from minidist.parallel.tools.schedules import schedule
from minidist.parallel.zero import STAGES, ZeroStage1
from minidist.train.config import TrainConfig
from minidist.train.fingerprint import digest, fingerprint, state
from minidist.train.layout import Layout

DataParallel = Replicated | ZeroStage1
LEAST_SCALE = 2.0**-24  # of the loss: gradients that overflow with less do so whatever the scale
TRACED_STEPS = 2  # a trace shows the last few steps: every one is like them, and a whole run would fill a disk


@dataclass
class RankResult:
    """What one rank brings back from a run."""

    losses: list[float]  # of each step, the mean over the global batch
    fingerprint: str
    step_digests: list[str]  # of the weights and the optimizer state after each step, if wished for
    seconds: float  # for all steps
    traffic: trace.Traffic
    memory: dict[str, int] = field(default_factory=dict)  # bytes at peak, by kind and in all: see ledger.py
    collectives: list[dict] = field(default_factory=list)  # of one step: see trace.Collectives
    flops: dict[str, int] = field(default_factory=dict)  # of all steps' matrix products, by phase: see flops.py
    loss_scale: float = 1.0  # at the end
    skipped_steps: int = 0  # for an overflow of float16
    validation_loss: float | None = None
    sample: bytes | None = None
    log: list = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    override_calls: dict[str, int] = field(default_factory=dict)  # how often each plugged-in function was called


@dataclass
class Run:
    """One training run, over all its ranks."""

    layout: Layout
    config: TrainConfig
    ranks: list[RankResult]
    seconds: float  # from the call to the last rank's result

    @property
    def fingerprint(self) -> str:
        return self.ranks[0].fingerprint

    @property
    def losses(self) -> list[float]:
        return self.ranks[0].losses

    @property
    def tokens_per_second(self) -> float:
        return self.config.tokens_per_step * len(self.losses) / max(rank.seconds for rank in self.ranks)

    def as_dict(self) -> dict:
        """What ``--json`` writes."""
        return {
            "layout": str(self.layout),
            "config": asdict(self.config),
            "losses": self.losses,
            "validation_loss": self.ranks[0].validation_loss,
            "fingerprint": self.fingerprint,
            "tokens_per_second": self.tokens_per_second,
            "seconds": self.seconds,
            "traffic": [rank.traffic.as_dict() for rank in self.ranks],
            "memory": [rank.memory for rank in self.ranks],
            "collectives": [rank.collectives for rank in self.ranks],
            "flops": [rank.flops for rank in self.ranks],
            "loss_scale": self.ranks[0].loss_scale,
            "skipped_steps": self.ranks[0].skipped_steps,
        }


@dataclass(frozen=True)
class RunOptions:
    """What a run brings back beside its losses and its fingerprint."""

    step_digests: bool = False
    progress: bool = False  # report every step to the parent
    validate: bool = False
    sample: int = 0  # bytes of text to generate
    trace: bool = False
    stop_after: int | None = None  # the step after which to stop and bring the arrays back


def run(
    cluster: Cluster,
    config: TrainConfig,
    layout: Layout,
    options: RunOptions = RunOptions(),
    on_step: Callable[[int, float], None] | None = None,
    rank_function: Callable | None = None,
) -> Run:
    """Train on the ranks of a cluster; ``on_step(step, loss)`` is called in this process as rank 0 ends each step.

    ``rank_function`` stands in for ``train_rank``, as tests do that plant a fault in the ranks first.
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
    with autocast(config.precision):
        return _train_rank(world, config, layout, options)


def _train_rank(world: ProcessGroup, config: TrainConfig, layout: Layout, options: RunOptions) -> RankResult:
    corpus = load_corpus(config.text, config.context)
    model = GPT(config.model, seed=config.seed)
    memory = ledger.start()
    mesh = init_device_mesh((layout.pp, layout.dp, layout.tp), mesh_dim_names=("pp", "dp", "tp"), group=world)
    group = mesh.get_group("dp")  # the ranks that hold the same part of the model
    tensors = TensorParallel(model, mesh.get_group("tp"), gpt_plan(bool(layout.sp), np.dtype(config.reduce_dtype)))
    recompute_blocks(model, layout.recompute)
    pipeline = Pipeline(model, mesh.get_group("pp"), config.stages(layout), config.activations(layout))
    replicas = data_parallel(pipeline.part, group, layout, config)
    parts = replicas, pipeline, tensors  # from the last cut to the first
    optimizer = AdamW(replicas.trained, config.lr, weight_decay=config.weight_decay)
    scaler = loss_scaler(config)
    enter(replicas, optimizer)
    memory.forget_peaks()  # every rank has drawn the whole model for a moment; real systems draw it in shards
    mine = share_of(group.rank, layout.dp, config.micro_batches)
    if layout.pp > 1:
        planned = schedule(layout.schedule, layout.pp, len(mine), layout.virtual)
        check_schedule(planned, len(mine))

    losses, digests, log = [], [], []
    before, flops_before = world.traffic, flops.snapshot()
    started = time.perf_counter()
    np.seterr(over="ignore", invalid="ignore")  # a run that diverges ends with an error of its own, which says more
    for step in range(config.steps):
        if options.trace and step == max(0, config.steps - TRACED_STEPS):
            trace.start()
        earlier = world.collectives
        with trace.span(f"step {step}", "step"):
            replicas.zero_grad()
            total = 0.0  # of the losses of this rank's micro-batches
            if layout.pp == 1:
                for index in mine:
                    if index == mine[-1]:
                        total += forward_backward(model, corpus, config, step, index, scaler.scale)
                    else:
                        with replicas.no_sync():
                            total += forward_backward(model, corpus, config, step, index, scaler.scale)
            else:
                batches = partial(batch_of, corpus, config, step)
                with replicas.no_sync():
                    total = pipeline.run(planned[pipeline.group.rank], mine, batches, scaler.scale)
                pipeline.sum_tied()
            with trace.span("finish gradients", "wait"):
                replicas.wait_for_gradients()
            with trace.span("optimizer"):
                try:
                    skipped = overflowed(scaler, *parts)
                    if not skipped:
                        average_gradients(replicas.trained, config.micro_batches)
                        clip(config.clip, *parts)
                except FloatingPointError as error:
                    raise FloatingPointError(f"training diverged in step {step}: {error}") from None
                if not skipped:
                    optimizer.lr = warmup_cosine(step, config.steps, config.lr, config.warmup, config.lr / 10)
                    optimizer.step()
            with trace.span("sync_params parameters", "wait"):
                replicas.sync_params()
            losses.append(mean_loss(total, config.micro_batches, group, pipeline.group))
            if not isfinite(losses[-1]):  # a lower scale of the loss would not help
                raise FloatingPointError(
                    f"training diverged in step {step}: the loss is {losses[-1]}. A lower learning rate or a longer "
                    "warmup may help"
                )
        collectives = world.collectives - earlier
        if options.step_digests:
            digests.append(digest(model, optimizer, *parts).hexdigest())
        if options.progress and world.rank == 0:
            world.report((step, losses[-1]))
        if options.stop_after == step:
            break
    seconds = time.perf_counter() - started
    traffic = world.traffic - before
    ledger.stop()
    if options.trace:
        log = trace.stop()

    result = RankResult(
        losses,
        fingerprint(model, optimizer, losses, *parts),
        digests,
        seconds,
        traffic,
        memory.as_dict(),
        collectives.as_list(),
        dict(flops.snapshot() - flops_before),
        scaler.scale,
        scaler.skipped,
        log=log,
        override_calls=dict(overrides.calls),
    )
    if options.stop_after is not None:
        arrays = state(model, optimizer, *parts)
        result.arrays = {name: backend.to_host(array).copy() for name, array in arrays.items()}
    if options.validate or options.sample:
        replicas.unshard_all()
        model = whole_model(model, config, pipeline, tensors, world.rank == 0)
    if options.validate and world.rank == 0:
        result.validation_loss = validation_loss(model, corpus, config)
    if options.sample and world.rank == 0:
        result.sample = generate(model, b"The ", options.sample, seed=config.seed)
    return result


def data_parallel(model: GPT, group: ProcessGroup, layout: Layout, config: TrainConfig) -> DataParallel:
    """What shares the work out over the data-parallel ranks, and the memory, as the layout says."""
    dtype, parameters = np.dtype(config.reduce_dtype), model.parameters()
    if layout.zero:
        return zero(model, group, layout, config, dtype)
    if layout.sync == "naive":
        return Replicated(NaiveDataParallel(parameters, group, layout.algorithm, dtype), parameters)
    overlap = layout.sync == "overlapped" and group.size > 1  # alone there is nothing to overlap
    sums = bucketed_data_parallel(parameters, group, layout.algorithm, dtype, layout.bucket_mb, overlap)
    return Replicated(sums, parameters)


def zero(model: GPT, group: ProcessGroup, layout: Layout, config: TrainConfig, dtype) -> ZeroStage1:
    """ZeRO of the layout's stage. With ``shard``, ranks side by side share a copy, and groups of them are replicas."""
    shard = layout.shard or layout.dp
    mesh = init_device_mesh((layout.dp // shard, shard), mesh_dim_names=("replicate", "shard"), group=group)
    groups = mesh.get_group("shard"), mesh.get_group("replicate")
    rounds = len(share_of(0, layout.dp, config.micro_batches))  # rank 0 has the most
    arguments = model, model.blocks, *groups, rounds, layout.algorithm, dtype
    if layout.zero == 3:
        arguments += bool(layout.reshard_after_forward), bool(layout.prefetch)
    return STAGES[layout.zero](*arguments)


def clip(max_norm: float, replicas: DataParallel, pipeline: Pipeline, tensors: TensorParallel) -> float:
    """Scale all gradients so that their global norm, over all ranks, is at most ``max_norm``; return what it was."""

    def all_sum(value: int) -> int:
        return pipeline.all_sum(tensors.all_sum(replicas.all_sum(value)))

    def owns(parameter: Parameter) -> bool:
        return tensors.owns(parameter) and pipeline.owns(parameter)

    all_max = partial(largest, replicas, pipeline, tensors)
    return clip_grad_norm(replicas.trained, max_norm, all_max, all_sum, owns)


def overflowed(scaler: GradScaler, replicas: DataParallel, pipeline: Pipeline, tensors: TensorParallel) -> bool:
    """Take the loss's scale out of all gradients, and have it follow what they were. True if the step is left out.

    All ranks agree: a rank that stepped while another did not would never have its weights again.
    """
    overflow = scaler.unscale(replicas.trained, partial(largest, replicas, pipeline, tensors))
    if overflow and scaler.scale < LEAST_SCALE:
        raise FloatingPointError(
            f"gradients overflow in {scaler.scale:g} of their size. A lower learning rate may help"
        )
    scaler.update(overflow)
    return overflow


def largest(replicas: DataParallel, pipeline: Pipeline, tensors: TensorParallel, value: float) -> float:
    """The largest of all ranks' values."""
    return pipeline.all_max(tensors.all_max(replicas.all_max(value)))


def loss_scaler(config: TrainConfig) -> GradScaler:
    """What scales the loss: one that does nothing where no gradient is too small for the precision."""
    if not POLICIES[config.precision].scales_loss:
        return GradScaler(enabled=False)
    if config.loss_scale:
        return grad_scaler(init_scale=config.loss_scale, growth_interval=0)
    return grad_scaler()


def whole_model(model: GPT, config: TrainConfig, pipeline: Pipeline, tensors: TensorParallel, wanted: bool) -> GPT:
    """The trained model as one process would hold it, where it is wanted, to be run there. Called by all ranks."""
    if tensors.group.size == pipeline.group.size == 1:
        return model
    mine = {parameter.name: parameter.data for parameter in pipeline.part.parameters()}
    arrays = tensors.whole(pipeline.whole(mine))
    if not wanted:
        return model
    model = GPT(config.model)
    for parameter in model.parameters():
        parameter.data = arrays[parameter.name]
    return model


def enter(replicas: DataParallel, optimizer: AdamW) -> None:
    """Enter what is there before the first step into the memory ledger; master weights are entered already."""
    for parameter in replicas.trained:
        ledger.hold("parameters", parameter.data)
    for array in optimizer.state().values():
        ledger.hold("optimizer", array)


def forward_backward(model: GPT, corpus, config: TrainConfig, step: int, index: int, scale: float = 1.0) -> float:
    """Run one micro-batch, add its gradients, times ``scale``, to those that are there, and return its loss."""
    tokens, targets, dropout_rng = batch_of(corpus, config, step, index)
    with trace.span(f"forward {index}"):
        loss = model(tokens, targets, dropout_rng)
    with trace.span(f"backward {index}"):
        loss.backward(xp.full((), scale, loss.dtype))
    return float(loss.item())


def batch_of(corpus, config: TrainConfig, step: int, index: int) -> tuple:
    """One micro-batch of a step: tokens and targets (B, T), and the dropout_rng of its dropout."""
    first = index * config.micro_batch
    batch = micro_batch(corpus, config.seed, step, first, config.micro_batch, config.context)
    return *map(backend.from_host, batch), DropoutRNG(config.seed, step, index)


def mean_loss(total: float, count: int, *groups: ProcessGroup) -> float:
    """The mean over all micro-batches, from the sum over this rank's: added up over each of the groups in turn."""
    sums = np.array([total], np.float64)
    for group in groups:
        all_reduce(sums, ReduceOp.SUM, group)
    return float(sums[0] / count)


@no_grad()
def validation_loss(model: GPT, corpus, config: TrainConfig) -> float:
    """The mean loss over the held-out text, in nats a token."""
    losses = [
        (float(model(backend.from_host(tokens), backend.from_host(targets)).item()), tokens.size)
        for tokens, targets in validation_batches(corpus, 8, config.context)
    ]
    return sum(loss * tokens for loss, tokens in losses) / sum(tokens for _, tokens in losses)
