"""The settings of a run: what is trained and how, with a batch that may grow. (layout.py says how the run is split.)

A ramp: the gradient noise scale grows while the loss falls (measuring/noise_scale.py), and so does the batch that pays
off. GPT-3 went from 32 thousand tokens to 3.2 million over its first 4 to 12 billion (Brown et al., 2020, table 2.1 and
appendix B). The form is that of Megatron-LM's ``--rampup-batch-size START INCREMENT SAMPLES``: the batch grows by
INCREMENT at equal distances, and is full after SAMPLES samples. It depends on the step alone, so a run may be
interrupted anywhere.
"""

from bisect import bisect_right
from dataclasses import dataclass, fields, replace
from functools import cached_property, lru_cache
from math import frexp

from minidist.backend import BACKENDS
from minidist.data.packing import PACKINGS, RANDOM
from minidist.nn.config import (
    Architecture,
    Experts,
    GPTConfig,
    ModelSizes,
    MoEConfig,
    Routing,
    check_one_of,
    check_real,
    check_whole,
)
from minidist.nn.optim.optimizers import warmup_cosine, warmup_stable_decay
from minidist.nn.precision.policy import POLICIES, PRODUCTS
from minidist.parallel.pipeline import spread
from minidist.train.layout import Layout
from minidist.train.notation import whole_number
from minidist.train.rules import check, of_loosened_run, of_run

OPTIMIZERS = ("adamw", "lamb", "sgd")
LR_SCHEDULES = ("cosine", "constant", "wsd")
RUN_CHOICES = {  # legal values of the settings that have few
    "optimizer": OPTIMIZERS,
    "lr_schedule": LR_SCHEDULES,
    "packing": (RANDOM, *PACKINGS),
    "document_mask": (0, 1),
    "restart_positions": (0, 1),
    "precision": tuple(POLICIES),
    "products": PRODUCTS,
    "reduce_dtype": ("float32", "float64"),
    "backend": BACKENDS,
}


@dataclass(frozen=True)
class Ramp:
    """A batch size that grows from ``start`` to ``full``, by ``increment``, over the first ``samples`` of a run."""

    start: int
    increment: int
    samples: int
    full: int

    def batch_at(self, step: int) -> int:
        """Number of samples in a step; steps are counted from 0."""
        return self.stages[bisect_right(self.stages, step, key=lambda stage: stage[0]) - 1][1]

    def samples_before(self, step: int) -> int:
        """Number of samples in all steps before this one."""
        starts, sizes = zip(*self.stages, strict=True)
        ends = [*starts[1:], step]
        return sum(max(0, min(end, step) - start) * size for start, end, size in zip(starts, ends, sizes, strict=True))

    @property
    def sizes(self) -> range:
        """Batch sizes from ``start`` to ``full``."""
        return range(self.start, self.full + 1, self.increment)

    @cached_property
    def stages(self) -> list[tuple[int, int]]:
        """Pairs (first step, samples in each step from there on). A large step may skip a size.

        The size after ``consumed`` samples is start + increment * (consumed * increments // samples).
        """
        increments = (self.full - self.start) // self.increment
        stages, first, consumed = [], 0, 0
        for grown in range(increments):
            size = self.start + grown * self.increment
            missing = (grown + 1) * self.samples - increments * consumed  # to the next size, times increments
            steps = max(0, -(-missing // (increments * size)))  # rounded up
            if steps:
                stages.append((first, size))
            first, consumed = first + steps, consumed + steps * size
        return [*stages, (first, self.full)]


@lru_cache
def read_ramp(text: str, full: int, micro_batch: int) -> Ramp:
    """Parse a ramp written START,INCREMENT,SAMPLES: up to ``full`` samples a step, in multiples of ``micro_batch``.

    "" means no ramp: the batch is full from the first step on.

    Raises:
        ValueError: for an invalid ramp, with the nearest valid number where there is one.
    """
    if not text:
        return Ramp(full, 1, 0, full)
    what = f"rampup_batch_size {text}"
    try:
        start, increment, samples = (whole_number(part) for part in text.replace(" ", "").split(","))
    except ValueError:
        raise ValueError(f"{what}: write START,INCREMENT,SAMPLES in whole numbers, such as 16,8,480") from None
    for name, size in (("start", start), ("increment", increment)):
        if size < 1 or size % micro_batch:
            nearest = max(1, round(size / micro_batch)) * micro_batch
            raise ValueError(f"{what}: the {name} must be a multiple of micro_batch {micro_batch}: choose {nearest}")
    if start >= full:
        raise ValueError(f"{what}: the batch grows to global_batch {full}, and must start below it")
    if (full - start) % increment:
        fitting = [n for n in range(micro_batch, full - start + 1, micro_batch) if (full - start) % n == 0]
        nearest = min(fitting, key=lambda n: abs(n - increment))
        raise ValueError(
            f"{what}: the {full - start} samples from {start} to global_batch {full} are not a multiple of the "
            f"increment {increment}: choose an increment of {nearest}"
        )
    if samples < 0:
        raise ValueError(f"{what}: the samples over which the batch grows must not be negative")
    return Ramp(start, increment, samples, full)


@dataclass(frozen=True)
class Optimization:
    """Optimization."""

    global_batch: int = 48  # samples in a step, over all ranks
    micro_batch: int = 2  # samples per forward and backward pass: the grain that no layout cuts
    rampup_batch_size: str = ""  # START,INCREMENT,SAMPLES of a batch that is smaller at first: see Ramp
    steps: int = 100
    optimizer: str = "adamw"  # or lamb: see nn/optim/lamb.py; or sgd, without momentum
    lr: float = 3e-3
    warmup: int = 10  # steps
    lr_schedule: str = "cosine"  # or constant; or wsd: warm-up, stable, decay
    lr_decay_steps: int = 0  # the last steps of wsd, in which the rate falls
    clip: float = 1.0  # largest global gradient norm
    weight_decay: float = 0.1


@dataclass(frozen=True)
class Data:
    """Training data, and how it becomes samples."""

    text: str | None = None  # a file or folder to train on; None for the course's prose
    tokenizer: str | None = None  # file of a tokenizer with at most vocab tokens; None for bytes
    packing: str = RANDOM  # samples from random places of one text; or one of packing.PACKINGS: epochs of documents
    document_mask: int = 1  # whether documents in a sample do not see each other
    restart_positions: int = 1  # whether positions start again at 0 in each document


@dataclass(frozen=True)
class Numbers:
    """Seed, precision and array library."""

    seed: int = 0
    precision: str = "fp32"  # of parameters and activations in the model: see nn/precision/policy.py
    products: str = "fast"  # or exact: the same bits on every machine, see nn/exact.py
    loss_scale: float = 0.0  # fixed scale for fp16; 0 to find it while training
    reduce_dtype: str = "float64"  # dtype of sums over micro-batches and ranks
    backend: str = "numpy"


@dataclass(frozen=True)
class TrainConfig(Numbers, Data, Routing, Experts, Optimization, Architecture, ModelSizes):
    """The settings of a run. (A dataclass lists the fields of its last base first.)

    Raises:
        ValueError: for values that are invalid, or do not fit together.
    """

    def __post_init__(self) -> None:
        self.model  # noqa: B018  checks the sizes of the model
        check_whole(self, 1, "global_batch", "micro_batch", "steps")
        check_whole(self, 0, "warmup", "lr_decay_steps", "seed")
        check_real(self, 0, "lr", "weight_decay")
        for name in ("lr", "clip"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be larger than 0, not {getattr(self, name)}")
        for name, choices in RUN_CHOICES.items():
            check_one_of(self, name, choices)
        if (self.lr_schedule == "wsd") != (self.lr_decay_steps > 0):
            raise ValueError(
                f"lr_schedule {self.lr_schedule} with lr_decay_steps {self.lr_decay_steps}: only wsd decays in the "
                "last steps, so choose both or neither"
            )
        for name in ("document_mask", "restart_positions"):
            if self.packing == RANDOM and not getattr(self, name):
                raise ValueError(f"{name} applies to documents: choose a packing, such as cut")
        if self.packing != RANDOM and self.text is None:
            raise ValueError(f"packing {self.packing} needs documents: name them with text")
        if self.global_batch % self.micro_batch:
            raise ValueError(
                f"global_batch {self.global_batch} must be a multiple of micro_batch {self.micro_batch}: "
                "a step consists of whole micro-batches"
            )
        self.ramp  # noqa: B018  checks it
        if self.loss_scale and self.precision != "fp16":
            raise ValueError(f"loss_scale {self.loss_scale:g} is for precision fp16; {self.precision} needs none")
        in_range = 2.0**-24 <= self.loss_scale <= 2.0**64 and frexp(self.loss_scale)[0] == 0.5
        if self.loss_scale != 0 and not in_range:
            raise ValueError(
                f"loss_scale must be a power of two from 2^-24 to 2^64, or 0 to adjust it automatically, not "
                f"{self.loss_scale:g}"
            )

    @property
    def model(self) -> GPTConfig:
        names = (field.name for kind in (Architecture, ModelSizes) for field in fields(kind))
        return GPTConfig(**{name: getattr(self, name) for name in names}, moe=self.moe)

    @property
    def moe(self) -> MoEConfig | None:
        """The model's experts; None for a dense model.

        Raises:
            ValueError: for a setting of experts in a model without any.
        """
        settings = {field.name: getattr(self, field.name) for field in fields(MoEConfig)}
        if self.experts:
            return MoEConfig(**settings)
        for name, value in settings.items():
            if value != getattr(TrainConfig, name):
                raise ValueError(f"{name} applies to experts, but there are none: set experts to 2 or more")
        return None

    def without_experts(self) -> "TrainConfig":
        """Return a copy of the settings for a dense model."""
        return replace(self, **{field.name: field.default for field in fields(MoEConfig)})

    @property
    def micro_batches(self) -> int:
        """Number of micro-batches in one step, over all ranks."""
        return self.global_batch // self.micro_batch

    @property
    def ramp(self) -> Ramp:
        """The ramp of the batch size.

        Raises:
            ValueError: for an invalid ramp.
        """
        return read_ramp(self.rampup_batch_size, self.global_batch, self.micro_batch)

    def lr_at(self, step: int) -> float:
        """Learning rate of a step; steps are counted from 0."""
        if self.lr_schedule == "cosine":
            return warmup_cosine(step, self.steps, self.lr, self.warmup, self.lr / 10)
        return warmup_stable_decay(step, self.steps, self.lr, self.warmup, self.lr_decay_steps, self.lr / 10)

    def batch_at(self, step: int) -> int:
        """Number of samples in a step; steps are counted from 0."""
        return self.ramp.batch_at(step)

    def samples_before(self, step: int) -> int:
        """Number of samples in all steps before this one."""
        return self.ramp.samples_before(step)

    @property
    def tokens_per_step(self) -> int:
        """Number of tokens in a step with the full batch."""
        return self.global_batch * self.context

    def tokens_of(self, steps: range) -> int:
        """Number of tokens in these steps."""
        return sum(map(self.batch_at, steps)) * self.context

    def check(self, layout: Layout) -> None:
        """Raise ValueError if this run cannot be split by the layout (rules.py). Called before any rank starts."""
        check(of_loosened_run(self, layout))
        if not self.rampup_batch_size:
            check(of_run(self, layout))
            return
        for size in self.ramp.sizes:
            for words in of_run(replace(self, global_batch=size, rampup_batch_size=""), layout):
                raise ValueError(f"rampup_batch_size {self.rampup_batch_size} has steps of {size} samples: {words}")

    def stages(self, layout: Layout) -> list[int]:
        """Return the number of layers in each stage of the pipeline."""
        return layout.layers_of_stages or spread(self.layers, layout.stage_count)

    def activations(self, layout: Layout, length: int) -> tuple[int, int, int]:
        """Return the shape of the activations between two blocks on a rank, for T = ``length`` tokens: (B, T/cp, C).

        With sp it is (B, T/cp/tp, C).
        """
        tokens = length // layout.cp
        return self.micro_batch, tokens // layout.tp if layout.sp else tokens, self.width
