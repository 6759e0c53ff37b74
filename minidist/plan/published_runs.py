"""Training runs whose layout and speed were published, how their authors count FLOPs, and a plan for each.

A published MFU or TFLOP/s means little without its count. Authors differ in two things: whether scores that the causal
mask hides count, and whether recomputation in backward counts.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import mean

import numpy as np

from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.roofline import peak_flops
from minidist.plan.cluster.toml_tables import choose, from_table, read_toml
from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import NUMERICS
from minidist.plan.models import ModelShape, model_of
from minidist.plan.planned_run import PlannedRun, plan_run, training_flops
from minidist.plan.time import StepCosts

DATA = Path(__file__).with_suffix(".toml")
COUNTS = ("model", "hardware", "unknown")
CONVENTIONS = ("full", "causal", "unknown")
MEMORY_COUNTS = ("peak", "states")
FIGURES = ("step_seconds", "mfu", "hfu", "tflops", "tokens_per_second_per_gpu", "memory_bytes")


@dataclass(frozen=True)
class PublishedRun:
    """Published run. Figures that were not published are None, but at least one was.

    Attributes:
        model: text for ``model_of``. context: tokens of a sequence; 0 for the model's.
        cluster: text for ``ClusterSpec.parse``. layout: text, ``key=value,key=value``. batch: sequences in a step.
        numerics: bytes of parameters, gradients and optimizer state: a key of plan/memory.py's NUMERICS.
        mfu, hfu: shares of the peak in ``precision``, without and with recomputation in backward.
        tflops: TFLOP/s of each GPU. tflops_count: "model" as in MFU, "hardware" as in HFU, or "unknown".
        memory_bytes: memory of the fullest GPU. memory_count: "peak", or "states" for parameters, gradients and
            optimizer states alone.
        flops_convention: "full" if all scores count, "causal" if only those that the mask leaves; "unknown" if the
            figures do not show it.
        source: where the figures were read. note: what was inferred, or what a layout cannot express.
    """

    name: str
    model: str
    cluster: str
    layout: str
    batch: int
    source: str
    context: int = 0
    precision: str = "bf16"
    numerics: str = "mixed"
    step_seconds: float | None = None
    mfu: float | None = None
    hfu: float | None = None
    tflops: float | None = None
    tflops_count: str = "unknown"
    tokens_per_second_per_gpu: float | None = None
    memory_bytes: float | None = None
    memory_count: str = "peak"
    flops_convention: str = "unknown"
    note: str = ""

    def __post_init__(self) -> None:
        for key, known in (
            ("tflops_count", COUNTS),
            ("flops_convention", CONVENTIONS),
            ("memory_count", MEMORY_COUNTS),
            ("numerics", tuple(NUMERICS)),
        ):
            if getattr(self, key) not in known:
                raise ValueError(f"{key}: unknown {getattr(self, key)!r}: {choose(getattr(self, key), known)}")
        if not any(getattr(self, figure) for figure in FIGURES):
            raise ValueError(f"no figure was published: give at least one of {', '.join(FIGURES)}")

    @property
    def shape(self) -> ModelShape:
        """The model at the run's own sequence length."""
        model = model_of(self.model)
        return replace(model, context=self.context) if self.context else model


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """Return the runs of published_runs.toml, in its order."""
    tables = read_toml(DATA)["run"]
    return tuple(from_table(PublishedRun, table, f"{DATA}: [[run]] {i}") for i, table in enumerate(tables, 1))


FAMILIES = {  # families of systems, by how they split parameters
    "tensor and pipeline parallel": "Megatron-LM and its like, with fused kernels",
    "fully sharded": "FSDP and ZeRO-3; the plan does not know what PyTorch adds in between",
}


@dataclass(frozen=True)
class Figure:
    """Published number and the planned one."""

    name: str
    published: float
    planned: float

    @property
    def error(self) -> float:
        """Relative error of the plan: below 0 if it is too low."""
        return self.planned / self.published - 1


@dataclass(frozen=True)
class Comparison:
    """Run with its figures (step_seconds, mfu, memory_bytes, as far as published), or why it cannot be planned."""

    run: PublishedRun
    planned: PlannedRun | None
    figures: tuple[Figure, ...]
    problem: str = ""

    @property
    def family(self) -> str:
        """Family of the run's system."""
        return family_of("zero=3" in self.run.layout.split(","))

    @property
    def slowdown(self) -> float | None:
        """Time of a step over its planned time; None if it was not published."""
        return next((1 / (1 + figure.error) for figure in self.figures if figure.name == "step_seconds"), None)


def family_of(fully_sharded: bool) -> str:
    """Return the family of a system, by whether it shards parameters over all ranks, as ZeRO-3 does."""
    tensor, sharded = FAMILIES
    return sharded if fully_sharded else tensor


def compare(run: PublishedRun) -> Comparison:
    """Plan a published run, and compare its figures with the plan, by its authors' count of FLOPs."""
    try:
        cluster = ClusterSpec.parse(run.cluster)
        precision = run.precision if run.precision in cluster.accelerator.flops else "fp16"
        layout = PlannedLayout.parse(run.layout, cluster.world_size)
        planned = plan_run(StepCosts(run.shape, cluster, precision, NUMERICS[run.numerics]), layout, run.batch)
    except ValueError as error:
        return Comparison(run, None, (), str(error))
    figures = []
    seconds = published_seconds(run, planned)
    if seconds:
        figures.append(Figure("step_seconds", seconds, planned.step_seconds))
        figures.append(
            Figure("mfu", run.mfu or _share(run, planned, seconds), _share(run, planned, planned.step_seconds))
        )
    if run.memory_bytes:
        memory = planned.memory
        states = memory.parameters + memory.gradients + memory.optimizer
        figures.append(
            Figure("memory_bytes", run.memory_bytes, states if run.memory_count == "states" else memory.total)
        )
    return Comparison(run, planned, tuple(figures))


def published_seconds(run: PublishedRun, planned: PlannedRun) -> float | None:
    """Seconds of a step: as published, or from published tokens or FLOPs a second; None if none of them was."""
    gpus = planned.cluster.world_size
    if run.step_seconds:
        return run.step_seconds
    if run.tokens_per_second_per_gpu:
        return planned.tokens / (run.tokens_per_second_per_gpu * gpus)
    peak = peak_flops(planned.cluster.accelerator, planned.precision)
    for share, count in ((run.mfu, "model"), (run.hfu, "hardware")):
        if share:
            return _flops(run, planned, count) / (share * peak * gpus)
    if run.tflops:
        return _flops(run, planned, "hardware" if run.tflops_count == "hardware" else "model") / (
            run.tflops * 1e12 * gpus
        )
    return None


def _flops(run: PublishedRun, planned: PlannedRun, count: str) -> float:
    """FLOPs of a step, as the run's authors count them; if that is unknown, as ``PlannedRun.mfu`` does."""
    convention = planned.convention if run.flops_convention == "unknown" else run.flops_convention
    return planned.tokens * training_flops(planned.model, convention, count, planned.layout.recompute)


def _share(run: PublishedRun, planned: PlannedRun, seconds: float) -> float:
    """MFU of a step that takes ``seconds``."""
    return _flops(run, planned, "model") / (seconds * planned.peak_flops)


def compare_all() -> list[Comparison]:
    """Compare all published runs with their plans."""
    return [compare(run) for run in published_runs()]


@dataclass(frozen=True)
class Summary:
    """Errors of many figures: their number, the mean error, the mean absolute error, and the worst."""

    count: int
    bias: float
    mean: float
    worst: float


def summarize(figures: list[Figure]) -> Summary:
    """Summarize the errors of at least one figure."""
    errors = [figure.error for figure in figures]
    return Summary(len(errors), mean(errors), mean(map(abs, errors)), max(errors, key=abs))


def figures_of(compared: list[Comparison], family: str) -> dict[str, list[Figure]]:
    """Return all figures of one family, by name, for names that were compared at least once."""
    found: dict[str, list[Figure]] = {}
    for one in compared:
        if one.family == family:
            for figure in one.figures:
                found.setdefault(figure.name, []).append(figure)
    return found


@dataclass(frozen=True)
class Spread:
    """Range of the slowdowns of published runs against their plans, from the 10th to the 90th percentile.

    Attributes:
        count: number of runs.
        held: share of the runs that lie in the range of the others, with all runs of the same source left out.
    """

    low: float
    high: float
    count: int
    held: float


@cache
def spread_of(family: str) -> Spread:
    """Compute the spread of one family's published runs."""
    runs = [(one.run.source, one.slowdown) for one in compare_all() if one.family == family and one.slowdown]

    def range_of(slowdowns: list[float]) -> tuple[float, float]:
        low, high = np.quantile(slowdowns, (0.1, 0.9))
        return float(low), float(high)

    held = 0
    for source, slowdown in runs:
        low, high = range_of([other for another, other in runs if another != source])
        held += low <= slowdown <= high
    return Spread(*range_of([slowdown for _, slowdown in runs]), len(runs), held / len(runs))
