"""Communication of a planned step: bytes, and seconds that nothing hides.

The axes within a layer, for one micro-batch:

tp    two all-reduces forward and two backward; with sp an all-gather and a reduce-scatter in place of each
cp    keys and values forward, and again in backward with their gradients; or Ulysses' all-to-alls
ep    tokens to their experts and back, forward and backward
pp    activations to the next stage, their gradients to the one before

Gradients and parameters, over the replicas:

    plain      one all-reduce of the gradients
    ZeRO 1     a reduce-scatter of the gradients and an all-gather of the parameters
    ZeRO 2     the same; the reduce-scatter in every micro-batch, unless gradients are summed once a step
    ZeRO 3     parameters are gathered for each micro-batch: for forward, and again for backward if they were resharded

Gradients hide behind the backward of a micro-batch, parameters behind its forward. The last layer's part of messages
that are sent once a step is always exposed.
"""

from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import Held, Numerics
from minidist.plan.models import ModelShape
from minidist.plan.step.collectives import Group, Network, Sent
from minidist.plan.step.kernels import Compute, Part, Seconds

NOTHING = Compute(Seconds(), Seconds())  # no computation to hide behind


class Exchange:
    """Messages of one layout.

    Args:
        part: a rank's part of a micro-batch.
    """

    def __init__(
        self, model: ModelShape, layout: PlannedLayout, part: Part, network: Network, numerics: Numerics
    ) -> None:
        self.model, self.layout, self.network, self.numerics = model, layout, network, numerics
        self.stream = numerics.activation * part.tokens * model.width  # bytes between two layers, of all tp ranks
        self.terms = self.stream * (numerics.term or numerics.activation) / numerics.activation  # as partial sums
        self.gathered = self.stream if layout.sp else self.terms  # an all-reduce gathers sums
        latent = sum(model.score_widths) / layout.tp
        widths = 2 * model.key_width_on(layout.tp) if model.latent is None else latent
        self.keys = numerics.activation * part.tokens * layout.cp * widths  # and values, of a sequence
        self.routed = model.moe.top_k * self.stream / part.sp if model.moe else 0.0  # to the experts of a layer

    def group(self, axis: str) -> Group:
        """Return the group of ranks of one axis."""
        layout = self.layout
        sizes = {
            "tp": (layout.tp, 1),
            "cp": (layout.cp, layout.tp),
            "ep": (layout.ep, layout.tp * layout.cp),
            "pp": (layout.pp, layout.tp * layout.cp * layout.dp),
            "dp": (layout.shards if layout.zero else layout.replicas, layout.tp),
        }
        return self.network.group(*sizes[axis])

    # ── Seconds ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def tp(self) -> float:
        """Seconds of tensor parallelism's messages in one layer."""
        group = self.group("tp")
        return 4 * (self.network.reduce_scatter(group, self.terms) + self.network.all_gather(group, self.gathered))

    def tp_at_ends(self, rank: int) -> float:
        """All-reduces of the embedding's output and of the gradient of the head's input, in layers, which have 4."""
        return ((rank == 0) + (rank == self.layout.pp - 1)) / 4

    def cp(self, compute: Compute) -> float:
        """Seconds of context parallelism's messages in one layer that its attention does not hide."""
        network, group = self.network, self.group("cp")
        if self.layout.cp_kind == "ulysses":
            queries = self.stream / self.layout.tp
            with_keys = network.all_to_all(group, queries + self.keys / group.size)
            return 2 * (with_keys + network.all_to_all(group, queries))
        once = network.all_gather(group, self.keys)
        if self.layout.cp_kind == "all-gather":
            return 3 * once  # keys and values twice, their gradients once
        hidden = compute.forward.attention, compute.backward.attention
        return max(0.0, once - hidden[0]) + max(0.0, 2 * once - hidden[1])

    def ep(self) -> float:
        """Seconds of expert parallelism's messages in one layer with experts."""
        return 4 * self.network.all_to_all(self.group("ep"), self.routed) if self.layout.ep > 1 else 0.0

    def send(self) -> float:
        """Seconds of a message to the next stage; each tp rank sends a part of it (Narayanan et al., section 4.1)."""
        return self.network.send(self.group("pp"), self.stream / self.layout.tp)

    @property
    def waits(self) -> float:
        """Number of messages of a micro-batch that a rank of the pipeline waits for, on average."""
        return 2 * (self.layout.stage_count - 1) / self.layout.pp

    # ── Bytes ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def sent(self, micro_batches: int, layers: int, sparse: int, rank: int, compute: Compute) -> list[Sent]:
        """Return the messages of a pipeline rank with ``layers`` layers in a step of ``micro_batches`` micro-batches.

        Gradients and parameters are not included. ``sparse`` of the layers have experts.
        """
        layout, m = self.layout, micro_batches
        again = 1.5 if layout.recompute == "full" else 1.0  # forward runs once more
        count = m * (again * layers + self.tp_at_ends(rank))
        what = "all_gather, reduce_scatter" if layout.sp else "all_reduce"
        ring = 4 * (layout.tp - 1) / layout.tp * (self.terms + self.gathered)
        found = [self._sent("tp", what, count * ring, count * self.tp())]
        exposed = m * layers * self.cp(compute)
        found.append(
            self._sent("cp", layout.cp_kind, m * layers * self._around(), m * layers * self.cp(NOTHING), exposed)
        )
        to_experts = 4 * (layout.ep - 1) / layout.ep * self.routed
        found.append(self._sent("ep", "all_to_all", m * sparse * to_experts, m * sparse * self.ep()))
        messages = 2 * layout.virtual - (rank == 0) - (rank == layout.pp - 1)  # none from the ends of the model
        found.append(self._sent("pp", "send", m * messages * self.stream / layout.tp, m * self.waits * self.send()))
        return [sent for sent in found if sent.group.size > 1 and sent.nbytes]

    def tied(self) -> list[Sent]:
        """Return the all-reduce, once a step, of the tied weight's gradient at both ends of a pipeline, if any."""
        layout = self.layout
        if layout.pp == 1 or not self.model.tied:
            return []
        stride, node_size = self.group("pp").stride, self.network.cluster.node_size
        group = Group(2, stride, 2 * stride if stride * layout.pp <= node_size else stride)
        weight = self.numerics.gradient * self.model.width * self.model.vocab / layout.tp
        seconds = self.network.all_reduce(group, weight)
        return [Sent("pp", "all_reduce", group, weight, seconds, seconds)]

    def _around(self) -> float:
        """Bytes that context parallelism sends for one layer and micro-batch."""
        layout, share = self.layout, (self.layout.cp - 1) / self.layout.cp
        if layout.cp_kind == "ulysses":
            return 2 * share * (2 * self.stream / layout.tp + self.keys / layout.cp)
        return 3 * share * self.keys

    def _sent(self, axis: str, what: str, nbytes: float, seconds: float, exposed: float | None = None) -> Sent:
        return Sent(axis, what, self.group(axis), nbytes, seconds, seconds if exposed is None else exposed)

    # ── Gradients and parameters, over the replicas ──────────────────────────────────────────────────────────────────

    def gradients_and_parameters(
        self, held: Held, micro_batches: int, forward: float, backward: float, layers: int
    ) -> list[Sent]:
        """Return the messages of data parallelism and ZeRO in a step.

        Args:
            held: parameters of the rank.
            forward, backward: seconds of one micro-batch that messages hide behind.
            layers: number of layers of the rank: a 1/layers part of messages that are sent once a step cannot hide.
        """
        layout, numerics, network, replicas = self.layout, self.numerics, self.network, self.group("dp")
        groups = [(held.dense, replicas)]
        if held.experts:
            size = max(1, replicas.size // layout.ep)
            groups.append((held.experts, network.group(size, layout.tp * layout.ep)))
        gradients = sum(network.reduce_scatter(group, numerics.gradient * count) for count, group in groups)
        parameters = sum(network.all_gather(group, numerics.parameter * count) for count, group in groups)

        def sent(collective: str, each: float, calls: int, seconds: float, hidden: float) -> Sent:
            exposed = calls * max(0.0, seconds - hidden, seconds / layers if calls == 1 else 0.0)
            nbytes = sum(calls * each * count * (group.size - 1) / group.size for count, group in groups)
            return Sent("dp", collective, replicas, nbytes, calls * seconds, exposed)

        if layout.zero == 0:
            found = [sent("all_reduce", 2 * numerics.gradient, 1, 2 * gradients, backward)]
        else:
            sums, gathers = self._calls(micro_batches)
            found = [
                sent("reduce_scatter", numerics.gradient, sums, gradients, backward),
                sent("all_gather", numerics.parameter, gathers, parameters, forward),
            ]
        return self._across_copies(held) + [one for one in found if one.nbytes]

    def _calls(self, micro_batches: int) -> tuple[int, int]:
        """Return how often ZeRO sums gradients in a step, and how often it gathers parameters."""
        layout = self.layout
        sums = micro_batches if layout.zero >= 2 and layout.grad_sync == "micro_batch" else 1
        if layout.zero < 3:
            return sums, 1
        if layout.reshard_after_forward:
            return sums, 2 * micro_batches
        # each backward reshards; in a pipeline only the end of the step does
        return sums, micro_batches if layout.pp == 1 else 1

    def _across_copies(self, held: Held) -> list[Sent]:
        """Return the all-reduce of shards' gradients over copies of the model (hybrid sharding); nothing hides it."""
        layout = self.layout
        copies = layout.replicas // layout.shards
        if not layout.zero or copies == 1:
            return []
        group = self.network.group(copies, layout.tp * layout.shards)
        shard = self.numerics.gradient * held.full / layout.shards
        seconds = self.network.all_reduce(group, shard)
        return [Sent("dp", "all_reduce", group, 2 * (copies - 1) / copies * shard, seconds, seconds)]
