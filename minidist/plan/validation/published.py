"""Training runs whose layout and speed were published, and how their authors count FLOPs.

A published MFU or TFLOP/s means little without its count. Authors differ in two things: whether scores that the causal
mask hides count, and whether what backward computes again counts.
"""

from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from minidist.plan.cluster.toml_tables import choose, from_table, read_toml
from minidist.plan.memory import NUMERICS
from minidist.plan.models.library import model_of
from minidist.plan.models.shape import ModelShape

DATA = Path(__file__).with_name("published_runs.toml")
COUNTS = ("model", "hardware", "unknown")
CONVENTIONS = ("full", "causal", "unknown")
MEMORY_COUNTS = ("peak", "states")
FIGURES = ("step_seconds", "mfu", "hfu", "tflops", "tokens_per_second_per_gpu", "memory_bytes")


@dataclass(frozen=True)
class PublishedRun:
    """One run. A figure that was not published is None; at least one was.

    Attributes:
        model: a name, or a model by hand. context: tokens of a sequence, where it differs from the model's.
        cluster: written as for ``ClusterSpec``. layout: as ``key=value,key=value``. batch: sequences in a step.
        numerics: bytes of parameters, gradients and optimizer state: a key of plan/memory.py's NUMERICS.
        mfu, hfu: shares of the peak in ``precision``, without and with what backward computes again.
        tflops: of each GPU. tflops_count: "model" as in MFU, "hardware" as in HFU.
        memory_bytes: of the GPU that has most. memory_count: "peak", or "states" for parameters, gradients and
            optimizer states alone.
        flops_convention: "full" if all scores count, "causal" if only those that the mask leaves; "unknown" if the
            figures cannot tell.
        source: where the figures were read. note: what was inferred, or differs from what a layout can say.
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
                raise ValueError(f"{key}: {choose(getattr(self, key), known)}")
        if not any(getattr(self, figure) for figure in FIGURES):
            raise ValueError(f"no figure was published: give at least one of {', '.join(FIGURES)}")

    @property
    def shape(self) -> ModelShape:
        """The model at the run's own sequence length."""
        model = model_of(self.model)
        return replace(model, context=self.context) if self.context else model


@cache
def published_runs() -> tuple[PublishedRun, ...]:
    """The runs of published_runs.toml, in its order."""
    tables = read_toml(DATA)["run"]
    return tuple(from_table(PublishedRun, table, f"{DATA}: [[run]] {i}") for i, table in enumerate(tables, 1))


def training_flops(model: ModelShape, convention: str, count: str, recompute: str = "none") -> float:
    """FLOPs of one token in forward and backward, as authors count them.

    Args:
        convention: "full" or "causal". count: "model", or "hardware" with what ``recompute`` computes again: all
            products but the head's ("full"), or those of scores and values ("selective").
    """
    scores = model.scores_flops
    products = model.forward_flops - scores
    if convention == "causal":
        scores /= 2
    again = {"none": 0.0, "selective": scores, "full": products + scores - model.head_flops}[recompute]
    return 3 * (products + scores) + (again if count == "hardware" else 0.0)
