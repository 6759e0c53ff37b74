"""How long a planned step takes, by parts. Arithmetic alone.

A rank of the pipeline computes its layers for one micro-batch after another, in a *slot* of forward and backward each;
the slowest rank sets the pace. What ranks send is exposed, and adds to a slot, unless something hides it:

    tensor parallelism      exposed: nothing else can run meanwhile
    context parallelism     a ring hides behind attention; an all-gather and Ulysses are exposed
    experts                 exposed
    pipeline                exposed
    gradients (dp, ZeRO)    hide behind the backward of one micro-batch, parameters behind its forward; what is
                            communicated in every micro-batch hides behind each. The last layer's always show

The kernels are those of step/kernels.py, the collectives those of step/collectives.py. How fast they run is measured,
one curve for each chip (cluster/efficiency.toml). What is not known here: stragglers, jitter, data loading, launches of
kernels, what communication takes from computing. So a real step takes longer.
"""

from dataclasses import dataclass

from minidist.plan.cluster.efficiency import Efficiency, efficiency_of
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import MIXED, Held, Numerics, layers_by_rank, parameters_of_rank
from minidist.plan.models.shape import ModelShape
from minidist.plan.step.collectives import Group, Network
from minidist.plan.step.kernels import Compute, Machine, Part, block_compute, head_compute
from minidist.plan.step.pipeline import pipeline_seconds


@dataclass(frozen=True)
class StepTime:
    """Seconds of one step on the slowest rank, by parts that add up to the step.

    Attributes:
        products, attention, elementwise: kernels of forward and backward. recompute: of forward once more.
        tp, cp, ep, pp, dp: communication that nothing hides.
        bubble: idle in the pipeline.
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
class Sent:
    """What one rank sends for one axis in one step.

    Attributes:
        axis: of the layout. The two ends of a tied weight are pp's all-reduce, copies of hybrid sharding dp's.
        collective: its name. group: those that take part.
        nbytes: sent by one rank. seconds: that it takes, hidden or not. exposed: seconds that nothing hides.
    """

    axis: str
    collective: str
    group: Group
    nbytes: float
    seconds: float
    exposed: float


class StepCosts:
    """What all layouts of a model on a cluster cost. It remembers the costs of a layer, so that a search is quick.

    Args:
        precision: of products: a key of the chip's ``flops``.
        efficiency: None for that of the chip.
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
        """What a rank computes of a micro-batch."""
        pairs = 0.5
        if layout.cp_kind == "ring" and layout.cp > 1:
            pairs = (layout.cp + 1) / (
                2 * layout.cp
            )  # each step of the ring waits for the last rank, which hides least
        return Part(
            layout.micro_batch * self.model.context / layout.cp,
            layout.tp,
            layout.tp if layout.sp else 1,
            layout.ep,
            layout.attention,
            pairs,
        )

    def least_seconds(self, layout: PlannedLayout, batch: int) -> float:
        """A lower bound of the step of this layout with any stage of ZeRO and any number of stages on a rank."""
        return _Step(self, layout, batch).least()

    def step(self, layout: PlannedLayout, batch: int) -> tuple[StepTime, list[Sent]]:
        """The time of a step of so many sequences, and what is sent in it."""
        return _Step(self, layout, batch).time()


class _Step:
    """One step of one layout."""

    def __init__(self, costs: StepCosts, layout: PlannedLayout, batch: int) -> None:
        self.costs, self.layout, self.model = costs, layout, costs.model
        self.micro_batches = layout.micro_batches(batch)
        self.part = costs.part(layout)
        self.element = costs.numerics.activation
        self.term = costs.numerics.term or self.element
        self.sent: list[Sent] = []

    def least(self) -> float:
        """Seconds that no step can be below, whatever ZeRO and the stages of a rank are: nobody ever idle."""
        model, machine = self.model, self.costs.machine
        kinds = [block_compute(model, self.part, machine, sparse) for sparse in self._kinds()]
        layers = (model.layers - model.sparse_layers, model.sparse_layers)
        compute = sum(
            count * (kind.forward.total + kind.backward.total + self._again(kind))
            for count, kind in zip(layers, kinds, strict=False)
        )
        head = head_compute(model, self.part, machine)
        sent = (
            (model.layers + 1 / 2) * self._tp() + model.layers * self._cp(kinds[0]) + model.sparse_layers * self._ep()
        )
        once = compute + sent + head.forward.total + head.backward.total
        return self.micro_batches * (once + 2 * (self.layout.pp - 1) * self._send()) / self.layout.pp

    def time(self) -> tuple[StepTime, list[Sent]]:
        model, layout, m = self.model, self.layout, self.micro_batches
        kinds = [block_compute(model, self.part, self.costs.machine, sparse) for sparse in self._kinds()]
        again = [self._again(compute) for compute in kinds]
        tp, cp, ep, send = self._tp(), self._cp(kinds[0]), self._ep(), self._send()
        head = head_compute(model, self.part, self.costs.machine)
        ends = head.forward.total + head.backward.total

        messages = 2 * (layout.stage_count - 1) / layout.pp  # of a micro-batch, for each rank: one waits for each

        def slot(dense: int, sparse: int, rank: int) -> float:
            layers, last = dense + sparse, rank == layout.pp - 1
            compute = sum(
                count * (kind.forward.total + kind.backward.total + more)
                for count, kind, more in zip((dense, sparse), kinds, again, strict=False)
            )
            tensor = (layers + self._ends(rank) / 4) * tp
            return compute + tensor + layers * cp + sparse * ep + messages * send + last * ends

        ranks = layers_by_rank(model, layout.pp, layout.virtual)
        slots = [slot(*layers, rank) for rank, layers in enumerate(ranks)]
        slowest = max(range(layout.pp), key=slots.__getitem__)
        last = slowest == layout.pp - 1
        dense, sparse = ranks[slowest]
        forward = sum(count * kind.forward.total for count, kind in zip((dense, sparse), kinds, strict=False))
        products = sum(count * kind.forward.products for count, kind in zip((dense, sparse), kinds, strict=False))
        shares = (
            (forward + last * head.forward.total) / slots[slowest],
            (products + last * head.forward.products) / slots[slowest],  # as many for the weights' gradients
        )
        _, bubble = pipeline_seconds(layout.schedule, layout.virtual, m, slots, *shares)
        parts = {
            name: m
            * (
                sum(
                    count * (getattr(kind.forward, name) + getattr(kind.backward, name))
                    for count, kind in zip((dense, sparse), kinds, strict=False)
                )
                + last * (getattr(head.forward, name) + getattr(head.backward, name))
            )
            for name in ("products", "attention", "elementwise")
        }
        layers = dense + sparse
        parts["recompute"] = m * sum(count * more for count, more in zip((dense, sparse), again, strict=False))
        parts["tp"] = m * (layers + self._ends(slowest) / 4) * tp
        parts["cp"], parts["ep"] = m * layers * cp, m * sparse * ep
        parts["pp"] = messages * m * send + self._tied()
        held = parameters_of_rank(model, layout, slowest)
        parts["dp"] = self._dp(held, forward, slots[slowest] - forward, max(1, layers))
        parts["bubble"], parts["optimizer"] = bubble, self._optimizer(held)
        self._count(m * layers, m * sparse, slowest)
        return StepTime(**parts), self.sent

    def _kinds(self) -> tuple[bool, ...]:
        """Layers without experts, and with them."""
        return (False, True) if self.model.moe else (False,)

    def _again(self, compute: Compute) -> float:
        """Seconds of what backward computes again of one layer, with its communication."""
        if self.layout.recompute == "full":
            return compute.forward.total + self._tp() / 2
        if self.layout.recompute == "selective" and self.layout.attention == "standard":
            return compute.forward.attention
        return 0.0

    # ── What a layer sends for one micro-batch: seconds that nothing hides ───────────────────────────────────────────

    def _group(self, axis: str) -> Group:
        layout = self.layout
        sizes = {
            "tp": (layout.tp, 1),
            "cp": (layout.cp, layout.tp),
            "ep": (layout.ep, layout.tp * layout.cp),
            "pp": (layout.pp, layout.tp * layout.cp * layout.dp),
            "dp": (layout.shards if layout.zero else layout.replicas, layout.tp),
        }
        return self.costs.network.group(*sizes[axis])

    @property
    def _stream(self) -> float:
        """Bytes of a micro-batch's activations between two layers, on all tensor-parallel ranks together."""
        return self.element * self.part.tokens * self.model.width

    def _tp(self) -> float:
        """Two all-reduces forward and two backward; with sp, an all-gather and a reduce-scatter in place of each."""
        network, group, terms = self.costs.network, self._group("tp"), self._stream * self.term / self.element
        return 4 * (network.reduce_scatter(group, terms) + network.all_gather(group, self._gathered_stream))

    @property
    def _gathered_stream(self) -> float:
        """Bytes of what an all-reduce gathers, which are sums; with sp, activations."""
        return self._stream if self.layout.sp else self._stream * self.term / self.element

    def _ends(self, rank: int) -> int:
        """All-reduces of a rank beyond its layers': of what the embedding looks up, of the head input's gradient."""
        return (rank == 0) + (rank == self.layout.pp - 1)

    def _messages(self, rank: int) -> int:
        """How many messages a rank of the pipeline sends for a micro-batch: none from the two ends of the model."""
        layout = self.layout
        return 0 if layout.pp == 1 else 2 * layout.virtual - (rank == 0) - (rank == layout.pp - 1)

    @property
    def _keys(self) -> float:
        """Bytes of keys and values of a whole sequence, of a rank's heads."""
        widths = 2 * self.model.key_width if self.model.latent is None else sum(self.model.score_widths)
        return self.element * self.part.tokens * self.layout.cp * widths / self.layout.tp

    def _cp(self, compute: Compute) -> float:
        network, group = self.costs.network, self._group("cp")
        if group.size == 1:
            return 0.0
        if self.layout.cp_kind == "ulysses":
            queries = self._stream / self.layout.tp
            return 2 * (
                network.all_to_all(group, queries + self._keys / group.size) + network.all_to_all(group, queries)
            )
        once = network.all_gather(group, self._keys)
        if self.layout.cp_kind == "all-gather":
            return 3 * once  # keys and values twice, their gradients once
        hidden = compute.forward.attention, compute.backward.attention
        return max(0.0, once - hidden[0]) + max(0.0, 2 * once - hidden[1])

    def _ep(self) -> float:
        if self.layout.ep == 1:
            return 0.0
        return 4 * self.costs.network.all_to_all(self._group("ep"), self._routed)

    @property
    def _routed(self) -> float:
        """Bytes that a rank sends to the experts of one layer."""
        return self.model.moe.top_k * self._stream / self.part.sp

    def _send(self) -> float:
        """One micro-batch to the next stage; tensor-parallel ranks send a part each (Narayanan et al., section 4.1)."""
        return self.costs.network.send(self._group("pp"), self._stream / self.layout.tp)

    def _tied(self) -> float:
        """Both ends of a pipeline sum the gradient of the weight that they share."""
        if self.layout.pp == 1 or not self.model.tied:
            return 0.0
        stride, pp, node_size = self._group("pp").stride, self.layout.pp, self.costs.cluster.node_size
        group = Group(2, stride if stride * pp <= node_size else stride * (pp - 1), node_size)
        weight = self.costs.numerics.gradient * self.model.width * self.model.vocab / self.layout.tp
        seconds = self.costs.network.all_reduce(group, weight)
        self.sent.append(Sent("pp", "all_reduce", group, weight, seconds, seconds))
        return seconds

    # ── Gradients, parameters, optimizer ─────────────────────────────────────────────────────────────────────────────

    def _dp(self, held: Held, forward: float, backward: float, layers: int) -> float:
        """Seconds of gradients and parameters that no micro-batch hides.

        Args:
            forward, backward: seconds of one micro-batch.
            layers: of the rank: of what is sent once a step, one part in so many cannot hide.
        """
        layout, numerics, m = self.layout, self.costs.numerics, self.micro_batches
        groups = [(held.dense, self._group("dp"))]
        if held.experts:
            size = max(1, self._group("dp").size // layout.ep)
            groups.append((held.experts, self.costs.network.group(size, layout.tp * layout.cp * layout.ep)))
        network = self.costs.network
        gradients = sum(network.reduce_scatter(group, numerics.gradient * count) for count, group in groups)
        params = sum(network.all_gather(group, numerics.parameter * count) for count, group in groups)
        across = self._across(held)
        grad_calls = m if layout.zero >= 2 and layout.grad_sync == "micro_batch" else 1
        if layout.zero == 0:
            times = [("all_reduce", numerics.gradient, 1, 2 * gradients, backward, 2)]
        else:
            param_calls = 1
            if layout.zero == 3:  # without resharding after forward: once for each backward, which does reshard
                param_calls = 2 * m if layout.reshard_after_forward else m if layout.pp == 1 else 1
            times = [
                ("reduce_scatter", numerics.gradient, grad_calls, gradients, backward, 1),
                ("all_gather", numerics.parameter, param_calls, params, forward, 1),
            ]
        exposed_all = across
        for name, each, calls, seconds, hidden, factor in times:
            exposed = calls * max(0.0, seconds - hidden, seconds / layers if calls == 1 else 0.0)
            exposed_all += exposed
            nbytes = sum(factor * calls * each * count * (g.size - 1) / g.size for count, g in groups)
            if nbytes:
                self.sent.append(Sent("dp", name, groups[0][1], nbytes, calls * seconds, exposed))
        return exposed_all

    def _across(self, held: Held) -> float:
        """Copies of a sharded model sum their shards' gradients (hybrid sharding)."""
        copies = self.layout.replicas // self.layout.shards
        if not self.layout.zero or copies == 1:
            return 0.0
        group = self.costs.network.group(copies, self.layout.tp * self.layout.shards)
        shard = self.costs.numerics.gradient * held.full / self.layout.shards
        seconds = self.costs.network.all_reduce(group, shard)
        self.sent.append(Sent("dp", "all_reduce", group, 2 * (copies - 1) / copies * shard, seconds, seconds))
        return seconds

    def _optimizer(self, held: Held) -> float:
        """The norm reads gradients, the update reads and writes all state and writes parameters: memory alone."""
        numerics = self.costs.numerics
        count = held.sharded(self.layout) if self.layout.zero else held.full
        return self.costs.machine.memory(count * (2 * numerics.gradient + 2 * numerics.optimizer + numerics.parameter))

    def _count(self, layers: int, sparse: int, rank: int) -> None:
        """Note what the axes within a layer send in a step, for so many layers of micro-batches of a rank."""
        layout, m = self.layout, self.micro_batches
        again = 1.5 if layout.recompute == "full" else 1.0

        def note(axis: str, what: str, nbytes: float, seconds: float, exposed: float) -> None:
            group = self._group(axis)
            if group.size > 1 and nbytes:
                self.sent.append(Sent(axis, what, group, nbytes, seconds, exposed))

        ring = (layout.tp - 1) / layout.tp
        what = "all_gather, reduce_scatter" if layout.sp else "all_reduce"
        count = again * layers + m * self._ends(rank) / 4
        terms = self._stream * self.term / self.element
        note("tp", what, 4 * count * ring * (terms + self._gathered_stream), count * self._tp(), count * self._tp())
        if layout.cp > 1:
            ring = (layout.cp - 1) / layout.cp
            if layout.cp_kind == "ulysses":
                nbytes = 2 * ring * (2 * self._stream / layout.tp + self._keys / layout.cp)
            else:
                nbytes = 3 * ring * self._keys
            kind = block_compute(self.model, self.part, self.costs.machine, False)
            alone = self._cp(Compute(kind.forward * 0, kind.backward * 0))
            note("cp", layout.cp_kind, layers * nbytes, layers * alone, layers * self._cp(kind))
        if layout.ep > 1:
            share = (layout.ep - 1) / layout.ep
            note("ep", "all_to_all", 4 * sparse * share * self._routed, sparse * self._ep(), sparse * self._ep())
        if layout.pp > 1:
            seconds = 2 * (layout.stage_count - 1) / layout.pp * m * self._send()
            note("pp", "send", m * self._messages(rank) * self._stream / layout.tp, seconds, seconds)
