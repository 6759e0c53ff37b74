"""One run, planned: its memory, time, utilization; and a whole training: days, failures, what it costs."""

from dataclasses import dataclass

from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.cluster.roofline import peak_flops
from minidist.plan.goodput import best_interval, cluster_mtbf, goodput
from minidist.plan.layout import PlannedLayout, with_attention
from minidist.plan.memory import Memory, memory_of
from minidist.plan.models import ModelShape
from minidist.plan.step.collectives import Sent
from minidist.plan.time import StepCosts, StepTime


@dataclass(frozen=True)
class PlannedRun:
    """What a layout costs on a cluster.

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
    def all_pairs_flops(self) -> float:
        """FLOPs of a step, forward and twice as many in backward, pairs that the causal mask hides among them."""
        return 3 * self.tokens * self.model.forward_flops

    @property
    def causal_flops(self) -> float:
        """FLOPs without the pairs that the mask hides, which are half of them."""
        return self.all_pairs_flops - 3 * self.tokens * self.model.scores_flops / 2

    @property
    def model_flops(self) -> float:
        """Those that count in MFU: of the pairs of tokens that the attention kernel computes.

        So all pairs for standard attention, as PaLM and Megatron-LM count, and half of them for flash attention, as
        Llama 3 does. Authors differ; both counts are here.
        """
        return self.causal_flops if self.layout.attention == "flash" else self.all_pairs_flops

    @property
    def recomputed_flops(self) -> float:
        """FLOPs of what backward computes again."""
        if self.layout.recompute == "full":
            return self.model_flops / 3 - self.tokens * self.model.head_flops
        if self.layout.recompute == "selective" and self.layout.attention == "standard":
            return self.tokens * self.model.scores_flops
        return 0.0

    @property
    def peak_flops(self) -> float:
        """FLOP/s of all GPUs."""
        return self.cluster.world_size * peak_flops(self.cluster.accelerator, self.precision)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization (Chowdhery et al., 2022, appendix B). See ``model_flops`` for what counts."""
        return self._utilization(self.model_flops)

    def _utilization(self, flops: float) -> float:
        return flops / (self.step_seconds * self.peak_flops)

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilization: with what is computed again."""
        return self._utilization(self.model_flops + self.recomputed_flops)

    @property
    def mfu_all_pairs(self) -> float:
        """MFU where scores that the causal mask hides count too."""
        return self._utilization(self.all_pairs_flops)

    @property
    def mfu_causal(self) -> float:
        """MFU where they do not."""
        return self._utilization(self.causal_flops)

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


HOUR, DAY = 3600, 86400


@dataclass(frozen=True)
class Campaign:
    """A run until it has seen ``tokens`` tokens.

    Attributes:
        steps: optimizer steps. busy_days: without failures. goodput: the share of time that is useful training.
        days: duration with failures. gpu_hours: GPU hours paid for. cost: None without a price, else in its currency.
        failures: expected. save_interval: seconds between saves that wastes the least.
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
    """The whole training of ``tokens`` tokens.

    Args:
        gpu_mtbf_hours: mean time between failures of one GPU; any failure stops all.
        save_seconds: training pause of a save. restart_seconds: time from a failure until training goes on.
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
