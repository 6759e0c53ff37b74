"""The one training loop, for every layout, and what a run of it leaves behind."""

import hashlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from math import isfinite

import numpy as np

from minidist import backend, ledger, sockets, trace
from minidist.comm.collectives import ReduceOp, all_reduce
from minidist.comm.group import ProcessGroup
from minidist.comm.launch import Cluster
from minidist.comm.mesh import init_device_mesh
from minidist.layout import Layout
from minidist.nn.clip import clip_grad_norm
from minidist.nn.data import load_corpus, micro_batch, validation_batches
from minidist.nn.gpt import GPT, GPTConfig, generate
from minidist.nn.optim import AdamW, average_gradients, warmup_cosine
from minidist.nn.random import Noise
from minidist.nn.tensor import no_grad
from minidist.parallel.data import NaiveDataParallel, Replicated, bucketed_data_parallel, share_of
from minidist.parallel.tensor import TensorParallel, gpt_plan
from minidist.parallel.zero import STAGES, ZeroStage1

DataParallel = Replicated | ZeroStage1
TRACED_STEPS = 2  # a trace shows the last few steps: every one is like them, and a whole run would fill a disk


@dataclass(frozen=True)
class TrainConfig:
    """What is trained, and how. Nothing here says how the run is split: that is the Layout.

    Raises:
        ValueError: for sizes that do not fit together.
    """

    layers: int = 2
    heads: int = 4
    width: int = 64
    context: int = 64  # tokens
    global_batch: int = 48  # samples in a step, over all ranks
    micro_batch: int = 2  # samples in one forward and backward pass: the grain that no layout cuts
    steps: int = 100
    lr: float = 3e-3
    warmup: int = 10  # steps
    clip: float = 1.0  # greatest global gradient norm
    weight_decay: float = 0.1
    dropout: float = 0.0
    seed: int = 0
    reduce_dtype: str = "float64"  # in which sums that cross micro-batches and ranks are taken
    text: str | None = None  # a file to train on; None for Python's own documentation
    backend: str = "numpy"

    def __post_init__(self) -> None:
        self.model  # noqa: B018  checks the sizes of the model
        for name in ("global_batch", "micro_batch", "steps", "warmup", "seed"):
            if not isinstance(getattr(self, name), int):
                raise ValueError(f"{name} must be a whole number, but is {getattr(self, name)!r}")
        for name in ("global_batch", "micro_batch", "steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, but is {getattr(self, name)}")
        for name in ("lr", "weight_decay"):
            if not isfinite(getattr(self, name)):
                raise ValueError(f"{name} must be a finite number, but is {getattr(self, name)}")
        for name in ("warmup", "weight_decay", "seed"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative, but is {getattr(self, name)}")
        for name in ("lr", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be larger than 0, but is {getattr(self, name)}")
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"global_batch {self.global_batch} must be a multiple of micro_batch {self.micro_batch}: "
                "a step consists of whole micro-batches"
            )
        if self.reduce_dtype not in ("float32", "float64"):
            raise ValueError(f"reduce_dtype must be float32 or float64, but is {self.reduce_dtype}")

    @property
    def model(self) -> GPTConfig:
        return GPTConfig(
            layers=self.layers, heads=self.heads, width=self.width, context=self.context, dropout=self.dropout
        )

    @property
    def micro_batches(self) -> int:
        """How many there are in one step, over all ranks."""
        return self.global_batch // self.micro_batch

    @property
    def tokens_per_step(self) -> int:
        return self.global_batch * self.context

    def check(self, layout: Layout) -> None:
        """Raises ValueError where this run cannot be split that way. Called before any rank starts."""
        if layout.dp > self.micro_batches:
            raise ValueError(
                f"dp={layout.dp} needs at least {layout.dp} micro-batches, but global_batch {self.global_batch} / "
                f"micro_batch {self.micro_batch} makes {self.micro_batches}; enlarge the one or reduce the other"
            )
        if self.heads % layout.tp:
            raise ValueError(
                f"tp={layout.tp} does not divide the {self.heads} attention heads, which are what it splits: choose tp "
                f"from {', '.join(str(n) for n in range(1, self.heads + 1) if self.heads % n == 0)}, or other heads"
            )
        if layout.sp and self.context % layout.tp:
            raise ValueError(
                f"sp=1 splits the sequence over the tp={layout.tp} ranks, which do not divide a context of "
                f"{self.context} tokens: choose a multiple of {layout.tp}"
            )


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
    validation_loss: float | None = None
    sample: bytes | None = None
    log: list = field(default_factory=list)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    socket_calls: dict[str, int] = field(default_factory=dict)  # how often each plugged-in function was called


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
        }


@dataclass(frozen=True)
class Wishes:
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
    wishes: Wishes = Wishes(),
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
    ranks = cluster.run(rank_function or train_rank, config, layout, wishes, on_report=on_report)
    return Run(layout, config, ranks, time.perf_counter() - started)


def train_rank(world: ProcessGroup, config: TrainConfig, layout: Layout, wishes: Wishes) -> RankResult:
    """One rank's part of a training run."""
    backend.use(config.backend, world.rank)
    corpus = load_corpus(config.text, config.context)
    model = GPT(config.model, seed=config.seed)
    memory = ledger.start()
    mesh = init_device_mesh((layout.dp, layout.tp), mesh_dim_names=("dp", "tp"), group=world)
    group = mesh.get_group("dp")  # the ranks that hold the same part of the model
    tensors = TensorParallel(model, mesh.get_group("tp"), gpt_plan(bool(layout.sp), np.dtype(config.reduce_dtype)))
    replicas = data_parallel(model, group, layout, config)
    optimizer = AdamW(replicas.trained, config.lr, weight_decay=config.weight_decay)
    enter(replicas, optimizer)
    memory.forget_peaks()  # every rank has drawn the whole model for a moment; real systems draw it in shards
    mine = share_of(group.rank, layout.dp, config.micro_batches)

    losses, digests, log = [], [], []
    before = world.traffic
    started = time.perf_counter()
    np.seterr(over="ignore", invalid="ignore")  # a run that diverges ends with an error of its own, which says more
    for step in range(config.steps):
        if wishes.trace and step == max(0, config.steps - TRACED_STEPS):
            trace.start()
        earlier = world.collectives
        with trace.span(f"step {step}", "step"):
            replicas.zero_grad()
            total = 0.0  # of the losses of this rank's micro-batches
            for index in mine:
                if index == mine[-1]:
                    total += forward_backward(model, corpus, config, step, index)
                else:
                    with replicas.no_sync():
                        total += forward_backward(model, corpus, config, step, index)
            with trace.span("finish gradients", "wait"):
                replicas.finish()
            with trace.span("optimizer"):
                average_gradients(replicas.trained, config.micro_batches)
                try:
                    clip(replicas, tensors, config.clip)
                except FloatingPointError as error:
                    raise FloatingPointError(f"training diverged in step {step}: {error}") from None
                optimizer.lr = warmup_cosine(step, config.steps, config.lr, config.warmup, config.lr / 10)
                optimizer.step()
            with trace.span("publish parameters", "wait"):
                replicas.publish()
            losses.append(mean_loss(total, config.micro_batches, group))
        collectives = world.collectives - earlier
        if wishes.step_digests:
            digests.append(digest(model, optimizer, replicas, tensors).hexdigest())
        if wishes.progress and world.rank == 0:
            world.report((step, losses[-1]))
        if wishes.stop_after == step:
            break
    seconds = time.perf_counter() - started
    traffic = world.traffic - before
    ledger.stop()
    if wishes.trace:
        log = trace.stop()

    result = RankResult(
        losses,
        fingerprint(model, optimizer, losses, replicas, tensors),
        digests,
        seconds,
        traffic,
        memory.as_dict(),
        collectives.as_list(),
        log=log,
        socket_calls=dict(sockets.calls),
    )
    if wishes.stop_after is not None:
        arrays = state(model, optimizer, replicas, tensors)
        result.arrays = {name: backend.to_host(array).copy() for name, array in arrays.items()}
    if wishes.validate or wishes.sample:
        replicas.unshard()
        model = whole_model(model, tensors, config, world.rank == 0)
    if wishes.validate and world.rank == 0:
        result.validation_loss = validation_loss(model, corpus, config)
    if wishes.sample and world.rank == 0:
        result.sample = generate(model, b"The ", wishes.sample, seed=config.seed)
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


def clip(replicas: DataParallel, tensors: TensorParallel, max_norm: float) -> float:
    """Scale all gradients so that their global norm, over all ranks, is at most ``max_norm``; return what it was."""

    def all_max(value: float) -> float:
        return tensors.all_max(replicas.all_max(value))

    def all_sum(value: int) -> int:
        return tensors.all_sum(replicas.all_sum(value))

    return clip_grad_norm(replicas.trained, max_norm, all_max, all_sum, tensors.counts_here)


def whole_model(model: GPT, tensors: TensorParallel, config: TrainConfig, wanted: bool) -> GPT:
    """The trained model as one process would hold it, where it is wanted, to be run there. Called by all ranks."""
    if not tensors.sharded:
        return model
    whole = tensors.whole({parameter.name: parameter.data for parameter in model.parameters()})
    if not wanted:
        return model
    model = GPT(config.model)
    for parameter in model.parameters():
        parameter.data = whole[parameter.name]
    return model


def enter(replicas: DataParallel, optimizer: AdamW) -> None:
    """Enter what is there before the first step into the memory ledger."""
    for parameter in replicas.trained:
        ledger.hold("parameters", parameter.data)
    for array in optimizer.state().values():
        ledger.hold("optimizer", array)


def forward_backward(model: GPT, corpus, config: TrainConfig, step: int, index: int) -> float:
    """Run one micro-batch, add its gradients to those that are there, and return its loss."""
    first = index * config.micro_batch
    batch = micro_batch(corpus, config.seed, step, first, config.micro_batch, config.context)
    tokens, targets = map(backend.from_host, batch)  # (B, T) each
    with trace.span(f"forward {index}"):
        loss = model(tokens, targets, Noise(config.seed, step, index))
    with trace.span(f"backward {index}"):
        loss.backward()
    return float(loss.item())


def mean_loss(total: float, count: int, group: ProcessGroup) -> float:
    """The mean over all micro-batches of all ranks, from the sum over this rank's."""
    sums = np.array([total], np.float64)
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


def state(
    model: GPT, optimizer: AdamW, replicas: DataParallel | None = None, tensors: TensorParallel | None = None
) -> dict:
    """Every array that a run changes, by name, in its full shape.

    With ``replicas``, called by all of their ranks; with ``tensors``, by all of theirs.
    """
    data = {parameter.name: parameter.data for parameter in optimizer.parameters}
    found = {}
    for kind, arrays in ({"": data} | optimizer.kinds).items():
        whole = arrays if replicas is None else replicas.whole(arrays)
        whole = whole if tensors is None else tensors.whole(whole)
        found |= {f"{kind}{name}": whole[parameter.name] for name, parameter in model.named_parameters()}
    return found


def digest(model: GPT, optimizer: AdamW, *parts):
    """SHA-256 over the names and the bytes of every parameter and every optimizer state; ``parts`` as of ``state``."""
    sha = hashlib.sha256()
    for name, array in state(model, optimizer, *parts).items():
        sha.update(name.encode())
        sha.update(np.ascontiguousarray(backend.to_host(array)))
    return sha


def fingerprint(model: GPT, optimizer: AdamW, losses: list[float], *parts) -> str:
    """The digest of the final state, continued over the loss of every step: what all layouts must share."""
    sha = digest(model, optimizer, *parts)
    sha.update(np.array(losses, "<f8"))
    return sha.hexdigest()
