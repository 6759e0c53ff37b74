"""Time of a planned step, by parts. Arithmetic alone.

A rank of the pipeline computes its layers for one micro-batch after another, in a *slot* of forward and backward each;
the slowest rank sets the pace. Communication is exposed, and adds to a slot, unless something hides it:

    tensor parallelism      exposed: nothing else can run meanwhile
    context parallelism     a ring hides behind attention; an all-gather and Ulysses are exposed
    experts                 exposed
    pipeline                exposed
    gradients (dp, ZeRO)    hide behind the backward of one micro-batch, parameters behind its forward; messages of
                            every micro-batch hide behind each. The last layer's are always exposed

The kernels are those of step/kernels.py, the messages those of step/exchange.py, on the links of step/collectives.py.
Their speed is measured, one curve for each chip (cluster/efficiency.toml). Not modelled are stragglers, jitter, data
loading, kernel launches, and the slowdown of kernels by communication. So a real step takes longer.
"""

from dataclasses import dataclass
from functools import cache

from minidist.plan.cluster.efficiency import Efficiency, efficiency_of
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import MIXED, Numerics, layers_by_rank, parameters_of_rank
from minidist.plan.models import ModelShape
from minidist.plan.step.collectives import Network, Sent
from minidist.plan.step.exchange import Exchange
from minidist.plan.step.kernels import Compute, Machine, Part, Seconds, block_compute, head_compute


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step on the slowest rank, by parts that add up to the step.

    Attributes:
        products, attention, elementwise: kernels of forward and backward. recompute: recomputation in backward.
        tp, cp, ep, pp, dp: exposed communication.
        bubble: idle time in the pipeline.
    """

    products: float = 0.0
    attention: float = 0.0
    elementwise: float = 0.0
    recompute: float = 0.0
    tp: float = 0.0
    cp: float = 0.0
    ep: float = 0.0
    pp: float = 0.0
    dp: float = 0.0
    bubble: float = 0.0
    optimizer: float = 0.0

    @property
    def total(self) -> float:
        return sum(vars(self).values())


@dataclass(frozen=True)
class Slot:
    """Seconds of one rank of the pipeline for one micro-batch, through all of its stages.

    Attributes:
        forward, backward: kernels. recompute, tp, cp, ep, pp: as in ``StepTime``.
    """

    forward: Seconds
    backward: Seconds
    recompute: float
    tp: float
    cp: float
    ep: float
    pp: float

    @property
    def total(self) -> float:
        compute = self.forward.total + self.backward.total
        return compute + self.recompute + self.tp + self.cp + self.ep + self.pp


class StepCosts:
    """Costs of a step of a model on a cluster, for any layout. Costs of a layer are cached, so that a search is quick.

    Args:
        precision: precision of products: a key of the chip's ``flops``.
        numerics: bytes of each number that training holds.
        efficiency: measured efficiencies; None for those of the chip.
    """

    def __init__(
        self,
        model: ModelShape,
        cluster: ClusterSpec,
        precision: str,
        numerics: Numerics = MIXED,
        efficiency: Efficiency | None = None,
    ) -> None:
        self.model, self.cluster, self.numerics = model, cluster, numerics
        self.efficiency = efficiency or efficiency_of(cluster.accelerator)
        self.machine = Machine(cluster.accelerator, self.efficiency, precision, numerics.activation)
        self.network = Network(cluster, self.efficiency)

    def part(self, layout: PlannedLayout) -> Part:
        """Return a rank's part of a micro-batch."""
        pairs = 0.5
        if layout.cp_kind == "ring":  # each step waits for the slowest rank: half a block in the first, then whole ones
            pairs = 1 - 1 / (2 * layout.cp)
        tokens = layout.micro_batch * self.model.context / layout.cp
        return Part(tokens, layout.tp, layout.tp if layout.sp else 1, layout.ep, layout.attention, pairs)

    def least_seconds(self, layout: PlannedLayout, batch: int) -> float:
        """Lower bound of a step's seconds in this layout, with any ZeRO stage and any number of stages on a rank."""
        return _Step(self, layout, batch).least()

    def step(self, layout: PlannedLayout, batch: int) -> tuple[StepTime, list[Sent]]:
        """Return the time of a step of ``batch`` sequences, and the messages sent in it."""
        return _Step(self, layout, batch).time()

    def phases(self, layout: PlannedLayout, batch: int) -> dict[str, float]:
        """Return the seconds in which the slowest rank computes, by phase: forward, backward and recomputation."""
        step = _Step(self, layout, batch)
        slot = max(step.slots(), key=lambda slot: slot.total)
        seconds = {"forward": slot.forward.total, "backward": slot.backward.total, "recompute": slot.recompute}
        return {phase: step.micro_batches * each for phase, each in seconds.items()}


class _Step:
    """Costs of a step of one layout."""

    def __init__(self, costs: StepCosts, layout: PlannedLayout, batch: int) -> None:
        self.costs, self.layout, self.model = costs, layout, costs.model
        self.micro_batches = layout.micro_batches(batch)
        part = costs.part(layout)
        self.exchange = Exchange(costs.model, layout, part, costs.network, costs.numerics)
        self.dense = block_compute(costs.model, part, costs.machine, False)
        self.sparse = block_compute(costs.model, part, costs.machine, True) if costs.model.moe else self.dense
        self.head = head_compute(costs.model, part, costs.machine)

    def least(self) -> float:
        """Lower bound of the seconds of a step, whatever the ZeRO stage and the stages of a rank: no rank is idle."""
        sparse = self.model.sparse_layers
        once = self._slot(self.model.layers - sparse, sparse, ends=1 / 2, last=True, messages=2 * (self.layout.pp - 1))
        return self.micro_batches * once.total / self.layout.pp

    def slots(self) -> list[Slot]:
        """Return the slots of all ranks of the pipeline, most of which are alike."""
        slot, waits, pp = cache(self._slot), self.exchange.waits, self.layout.pp
        ranks = layers_by_rank(self.model, pp, self.layout.virtual)
        return [
            slot(*layers, self.exchange.tp_at_ends(rank), rank == pp - 1, waits) for rank, layers in enumerate(ranks)
        ]

    def _slot(self, dense: int, sparse: int, ends: float, last: bool, messages: float) -> Slot:
        """Return the slot of a rank with ``dense`` layers without and ``sparse`` layers with experts.

        Args:
            ends: tensor-parallel sums of embedding and head, in layers. last: whether the rank has the head.
            messages: number of messages that the rank waits for.
        """
        exchange, layers = self.exchange, dense + sparse
        return Slot(
            self.dense.forward * dense + self.sparse.forward * sparse + self.head.forward * last,
            self.dense.backward * dense + self.sparse.backward * sparse + self.head.backward * last,
            dense * self._again(self.dense) + sparse * self._again(self.sparse),
            (layers + ends) * exchange.tp(),
            layers * exchange.cp(self.dense),
            sparse * exchange.ep(),
            messages * exchange.send(),
        )

    def _again(self, compute: Compute) -> float:
        """Seconds of recomputing one layer in backward, with its communication."""
        if self.layout.recompute == "full":
            return compute.forward.total + self.exchange.tp() / 2
        if self.layout.recompute == "selective" and self.layout.attention == "standard":
            return compute.forward.attention
        return 0.0

    def time(self) -> tuple[StepTime, list[Sent]]:
        costs, layout, m = self.costs, self.layout, self.micro_batches
        slots = self.slots()
        totals = [slot.total for slot in slots]
        rank = max(range(layout.pp), key=totals.__getitem__)
        slot, (dense, sparse) = slots[rank], layers_by_rank(self.model, layout.pp, layout.virtual)[rank]
        forward, products = slot.forward.total, slot.forward.products  # backward's for weights take as long
        shares = forward / slot.total, products / slot.total
        _, bubble = pipeline_seconds(layout.schedule, layout.virtual, m, totals, *shares)

        held = parameters_of_rank(self.model, layout, rank)
        layers = dense + sparse
        forward -= self.head.forward.total * (rank == layout.pp - 1)  # layers' parameters do not hide behind the head
        update = self.exchange.gradients_and_parameters(held, m, forward, slot.total - forward, max(1, layers))
        tied = self.exchange.tied()
        kernels, numerics = slot.forward + slot.backward, costs.numerics
        updated = held.sharded(layout) if layout.zero else held.full
        time = StepTime(
            products=m * kernels.products,
            attention=m * kernels.attention,
            elementwise=m * kernels.elementwise,
            recompute=m * slot.recompute,
            tp=m * slot.tp,
            cp=m * slot.cp,
            ep=m * slot.ep,
            pp=m * slot.pp + sum(sent.exposed for sent in tied),
            dp=sum(sent.exposed for sent in update),
            bubble=bubble,
            # the norm reads gradients, the update reads and writes all state and writes parameters
            optimizer=costs.machine.memory(
                updated * (2 * numerics.gradient + 2 * numerics.optimizer + numerics.parameter)
            ),
        )
        return time, self.exchange.sent(m, layers, sparse, rank, self.dense) + update + tied


def pipeline_seconds(
    schedule: str, virtual: int, micro_batches: int, slots: list[float], forward_share: float, weight_share: float
) -> tuple[float, float]:
    """Return the seconds in which the slowest rank of a pipeline works, and in which it is idle.

    naive                      m times all stages, one after another
    gpipe, 1f1b, interleaved   m slots of the slowest rank, and a slot of each other one over v (Narayanan et al., 2021)
    zb-h1                      products for the gradients of weights (W) fill the end: of F + I + W for each other rank
                               F + I - W is left, and F at least (Qi et al., 2023, arXiv 2401.10241, section 2)

    These are exact if all ranks are alike, or the last one, which has the head, is the slowest. If another one is, 1F1B
    ends a little earlier, because that rank runs forwards ahead while the others work. ZB-H1 needs at least as many
    micro-batches as ranks. (tests/plan/test_planned_steps.py runs the schedules.)

    Args:
        slots: each rank's seconds of forward and backward of one micro-batch through all of its stages.
        forward_share, weight_share: shares of a slot: forward, and backward's products for weights.
    """
    slowest = max(slots)
    working = micro_batches * slowest
    others = sum(slots) - slowest
    if schedule == "naive":
        return working, micro_batches * others
    if schedule == "zb-h1":
        after = (1 - forward_share - weight_share) * others + weight_share * (slots[0] - len(slots) * slowest)
        return working, forward_share * others + max(0.0, after)
    return working, others / virtual
