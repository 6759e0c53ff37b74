"""Plan of a run: memory, time and utilization of a step; days, failures and cost of a whole training."""

from dataclasses import dataclass

from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.roofline import peak_flops
from minidist.plan.goodput import best_interval, cluster_mtbf, goodput
from minidist.plan.layout import PlannedLayout, with_attention
from minidist.plan.memory import Memory, memory_of
from minidist.plan.models import ModelShape
from minidist.plan.step.collectives import Sent
from minidist.plan.time import StepCosts, StepTime
from minidist.plan.units import DAY, HOUR


def training_flops(model: ModelShape, convention: str, count: str, recompute: str = "none") -> float:
    """FLOPs of one token in forward and backward, as authors count them.

    Args:
        convention: "full" counts all pairs of tokens, "causal" half of them.
        count: "model", or "hardware", which adds recomputation.
        recompute: "none", "selective" (products of scores and values) or "full" (all products but the head's).
    """
    scores = model.scores_flops
    products = model.forward_flops - scores
    if convention == "causal":
        scores /= 2
    again = {"none": 0.0, "selective": scores, "full": products + scores - model.head_flops}[recompute]
    return 3 * (products + scores) + (again if count == "hardware" else 0.0)


@dataclass(frozen=True)
class PlannedRun:
    """Cost of a layout on a cluster.

    Attributes:
        batch: sequences in a step. precision: precision of products.
    """

    model: ModelShape
    cluster: ClusterSpec
    layout: PlannedLayout
    batch: int
    precision: str
    memory: Memory
    time: StepTime
    sent: tuple[Sent, ...]

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.model.context

    @property
    def step_seconds(self) -> float:
        return self.time.total

    @property
    def convention(self) -> str:
        """Pairs of tokens that count in MFU: those that the attention kernel computes.

        "full" for standard attention, all pairs, as PaLM and Megatron-LM count; "causal" for flash attention, the half
        that the causal mask leaves, as Llama 3 counts.
        """
        return "causal" if self.layout.attention == "flash" else "full"

    @property
    def peak_flops(self) -> float:
        """FLOP/s of all GPUs."""
        return self.cluster.world_size * peak_flops(self.cluster.accelerator, self.precision)

    def utilization(self, convention: str, count: str = "model") -> float:
        """Share of the peak that a step's FLOPs reach, counted as ``training_flops`` does."""
        again = self.layout.recompute
        if again == "selective" and self.layout.attention == "flash":
            again = "none"  # flash attention stores no scores that could be recomputed
        flops = self.tokens * training_flops(self.model, convention, count, again)
        return flops / (self.step_seconds * self.peak_flops)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (Chowdhery et al., 2022, appendix B). See ``convention`` for what counts."""
        return self.utilization(self.convention)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: as MFU, with recomputation counted too."""
        return self.utilization(self.convention, "hardware")

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.step_seconds

    @property
    def fits(self) -> bool:
        return self.memory.total <= self.cluster.accelerator.memory


def plan_run(costs: StepCosts, layout: PlannedLayout, batch: int) -> PlannedRun:
    """Plan one layout.

    Raises:
        ValueError: if the layout is illegal, with the nearest legal one.
    """
    layout = with_attention(layout, costs.efficiency.attention)
    layout.check(costs.model, batch)
    time, sent = costs.step(layout, batch)
    memory = memory_of(costs.model, layout, batch, costs.numerics)
    return PlannedRun(costs.model, costs.cluster, layout, batch, costs.machine.precision, memory, time, tuple(sent))


@dataclass(frozen=True)
class Campaign:
    """Whole training, until the run has seen ``tokens`` tokens.

    Attributes:
        steps: optimizer steps. busy_days: days without failures. goodput: share of time that is useful training.
        days: days with failures. gpu_hours: GPU hours paid for. cost: in the price's currency; None without a price.
        failures: expected number of failures. save_interval: seconds between saves, chosen for the least waste.
    """

    tokens: float
    steps: float
    busy_days: float
    goodput: float
    days: float
    gpu_hours: float
    cost: float | None
    failures: float
    save_interval: float


def campaign(
    run: PlannedRun,
    tokens: float,
    gpu_mtbf_hours: float,
    save_seconds: float,
    restart_seconds: float,
    price: float | None = None,
) -> Campaign:
    """Plan the whole training of ``tokens`` tokens.

    Args:
        run: plan of a step.
        gpu_mtbf_hours: mean time between failures of one GPU; any failure stops all GPUs.
        save_seconds: time that a save stops training. restart_seconds: time from a failure until training goes on.
        price: price of one GPU for an hour.
    """
    gpus = run.cluster.world_size
    mtbf = cluster_mtbf(gpu_mtbf_hours, gpus) * HOUR
    interval = best_interval(mtbf, save_seconds)
    useful = goodput(mtbf, interval, save_seconds, restart_seconds)
    busy = tokens / run.tokens_per_second
    whole = busy / useful if useful else float("inf")
    hours = whole / HOUR * gpus
    return Campaign(
        tokens,
        tokens / run.tokens,
        busy / DAY,
        useful,
        whole / DAY,
        hours,
        None if price is None else price * hours,
        whole / mtbf,
        interval,
    )
