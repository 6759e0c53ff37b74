"""The parts of a planned step: kernels against a block in NumPy, pipelines against schedules, links against graphs."""

from dataclasses import asdict, replace
from itertools import product
from math import inf

import numpy as np
import pytest

from minidist.comm.nodes import cost
from minidist.comm.nodes.placement import Link, Links
from minidist.parallel.tools.schedule_check import in_flight as in_flight_of
from minidist.parallel.tools.schedule_check import timeline
from minidist.parallel.tools.schedules import schedule
from minidist.plan.cluster.efficiency import PERFECT
from minidist.plan.cluster.hardware import Accelerator, ClusterSpec
from minidist.plan.cluster.max_flow import max_flow
from minidist.plan.cluster.topologies import topology_of
from minidist.plan.layout import PlannedLayout, stages_of
from minidist.plan.memory import MIXED, in_flight, parameters_of_rank, saved_by_block, saved_scores
from minidist.plan.models.library import model_of, published
from minidist.plan.models.shape import Experts, ModelShape
from minidist.plan.planned_run import plan_run
from minidist.plan.step.collectives import Group, Network
from minidist.plan.step.kernels import Compute, Machine, Part, block_compute, head_compute
from minidist.plan.step.pipeline import pipeline_seconds
from minidist.plan.time import StepCosts

# ── Kernels ──────────────────────────────────────────────────────────────────────────────────────────────────────────

GPT = ModelShape("gpt", layers=1, width=24, heads=6, vocab=30, context=10)
LLAMA = ModelShape("llama", 1, 24, 6, 30, 10, kv_heads=2, hidden=20, gated=True, learned_positions=False, dropout=False)
MIXTRAL = replace(LLAMA, moe=Experts(4, 2, 16, shared=1))


class Kernels:
    """Carries out kernels, and counts the FLOPs of products and the bytes that kernels read and write."""

    def __init__(self) -> None:
        self.flops = self.of_products = self.of_attention = self.elementwise = 0

    def product(self, a, b, in_attention: bool = False):
        made = a @ b
        self.flops += 0 if in_attention else 2 * made.size * a.shape[-1]
        self.count("of_attention" if in_attention else "of_products", a, b, made)
        return made

    def fused(self, function, *arrays, kind: str = "elementwise"):
        made = function(*arrays)
        self.count(kind, *arrays, *(made if isinstance(made, tuple) else (made,)))
        return made

    def count(self, kind: str, *arrays) -> None:
        setattr(self, kind, getattr(self, kind) + sum(array.nbytes for array in arrays))


def normed(x):
    return x / np.sqrt((x * x).mean(axis=1, keepdims=True))


def norm_backward(grad, x, more):
    y = normed(x)
    return (grad - y * (grad * y).mean(axis=1, keepdims=True)) * (y / x) + more


def rotated(x, sign: int = 1):
    return (x.copy().view(np.complex128) * np.exp(sign * 1j * np.arange(len(x)))[:, None]).view(np.float64)


def softmax(x):
    return np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True)


def softmax_backward(grad, p):
    return p * (grad - (grad * p).sum(axis=-1, keepdims=True))


class Block:
    """A transformer's layer in NumPy, float64: as few kernels as can be, each of which reads what it needs at all."""

    def __init__(self, model: ModelShape) -> None:
        self.model, random = model, np.random.default_rng(0)
        h, inner = model.width, model.mlp_hidden
        sizes = {"qkv": (h, h + 2 * model.key_width), "out": (h, h), "up": (h, (1 + model.gated) * inner)}
        self.weights = {name: random.normal(size=size) / 5 for name, size in {**sizes, "down": (inner, h)}.items()}
        self.masks = [random.random((model.context, h)) < 0.8 for _ in range(2)]
        self.dropped = random.random((model.heads, model.context, model.context)) < 0.8

    def heads(self, x):
        """(tokens, all heads) -> (heads of the queries, tokens, width of a head)."""
        each = x.reshape(len(x), -1, self.model.width // self.model.heads).swapaxes(0, 1)
        return np.repeat(each, self.model.heads // len(each), axis=0)

    def joined(self, x, width: int):
        """The way back, into so many columns: heads of the queries that share keys are summed."""
        n, d = x.shape[1:]
        return x.reshape(width // d, -1, n, d).sum(axis=1).swapaxes(0, 1).reshape(n, width)

    def added(self, kernels: Kernels, branch, x, mask):
        if self.model.dropout:
            return kernels.fused(lambda branch, x: (branch * mask + x, mask), branch, x)[0]
        return kernels.fused(np.add, branch, x)

    def forward(self, x, kernels: Kernels):
        model, weights, kept = self.model, self.weights, {"x": x, "a": kernels.fused(normed, x)}
        cut = (model.width, model.width + model.key_width)
        q, k, v = np.split(kernels.product(kept["a"], weights["qkv"]), cut, axis=1)
        if not model.learned_positions:
            q, k = kernels.fused(lambda q, k: (rotated(q), rotated(k)), q, k)
        q, k, v = map(self.heads, (q, k, v))
        scores = kernels.product(q, k.swapaxes(1, 2), in_attention=True)
        p = d = kernels.fused(softmax, scores, kind="of_attention")
        if model.dropout:
            d, _ = kernels.fused(lambda p: (p * self.dropped, self.dropped), p, kind="of_attention")
        kept["heads"] = q, k, v, p, d
        kept["o"] = self.joined(kernels.product(d, v, in_attention=True), model.width)
        kept["x2"] = self.added(kernels, kernels.product(kept["o"], weights["out"]), x, self.masks[0])
        kept["b"] = kernels.fused(normed, kept["x2"])
        kept["up"] = np.split(kernels.product(kept["b"], weights["up"]), 1 + model.gated, axis=1)
        kept["g"] = kernels.fused(lambda u, gate=1.0: np.tanh(u) * gate, *kept["up"])
        return self.added(kernels, kernels.product(kept["g"], weights["down"]), kept["x2"], self.masks[1]), kept

    def backward(self, grad, kept: dict, kernels: Kernels):
        """The gradient of the layer's input."""
        model = self.model

        def back(name: str, grad, x):
            made = kernels.product(x.T, grad)
            kernels.count("of_products", *[made.astype(np.float32)] * 2)  # adds to what earlier micro-batches left
            return kernels.product(grad, self.weights[name].T)

        def activation_back(grad, u, gate=None):
            slope = grad * (1 - np.tanh(u) ** 2)
            return slope if gate is None else (slope * gate, grad * np.tanh(u))

        branch = kernels.fused(np.multiply, grad, self.masks[1]) if model.dropout else grad
        inner = kernels.fused(activation_back, back("down", branch, kept["g"]), *kept["up"])
        inner = np.concatenate(inner, axis=1) if model.gated else inner
        grad = kernels.fused(norm_backward, back("up", inner, kept["b"]), kept["x2"], grad)
        branch = kernels.fused(np.multiply, grad, self.masks[0]) if model.dropout else grad
        out, (q, k, v, p, d) = self.heads(back("out", branch, kept["o"])), kept["heads"]
        v_grad = kernels.product(d.swapaxes(1, 2), out, in_attention=True)
        p_grad = kernels.product(out, v.swapaxes(1, 2), in_attention=True)
        if model.dropout:
            p_grad = kernels.fused(np.multiply, p_grad, self.dropped, kind="of_attention")
        s_grad = kernels.fused(softmax_backward, p_grad, p, kind="of_attention")
        q_grad = self.joined(kernels.product(s_grad, k, in_attention=True), model.width)
        k_grad = self.joined(kernels.product(s_grad.swapaxes(1, 2), q, in_attention=True), model.key_width)
        if not model.learned_positions:
            q_grad, k_grad = kernels.fused(lambda q, k: (rotated(q, -1), rotated(k, -1)), q_grad, k_grad)
        qkv = np.concatenate([q_grad, k_grad, self.joined(v_grad, model.key_width)], axis=1)
        return kernels.fused(norm_backward, back("qkv", qkv, kept["a"]), kept["x"], grad)


def seconds(model: ModelShape, flops: float, bandwidth: float, t: int = 1, sparse: bool = False) -> Compute:
    """Of one layer on a chip with so many FLOP/s and bytes/s. With one of them endless it counts the other."""
    part = Part(model.context, t, t, 1, "standard", 1.0)
    chip = Accelerator("x", 1.0, bandwidth, {"bf16": flops}, "")
    return block_compute(model, part, Machine(chip, PERFECT, "bf16", element=8), sparse)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
def test_a_layer_multiplies_and_moves_what_a_block_in_numpy_does(model):
    """Whose gradient is right: it left nothing out that it needs."""
    block, random = Block(model), np.random.default_rng(1)
    x, direction, grad = random.normal(size=(3, model.context, model.width))
    forward, backward = Kernels(), Kernels()
    _, kept = block.forward(x, forward)
    found = (block.backward(grad, kept, backward) * direction).sum()
    ahead, behind = (block.forward(x + step * direction, Kernels())[0] for step in (1e-5, -1e-5))
    assert found == pytest.approx((grad * (ahead - behind)).sum() / 2e-5, rel=1e-6)
    flops, moved = seconds(model, 1.0, inf), seconds(model, inf, 1.0)
    for phase, counted in (("forward", forward), ("backward", backward)):
        assert getattr(flops, phase).products == counted.flops
        told = getattr(moved, phase)
        assert (told.products, told.attention, told.elementwise) == (
            counted.of_products, counted.of_attention, counted.elementwise,
        )  # fmt: skip


def test_tensor_parallel_ranks_and_experts_share_the_work():
    wide = replace(LLAMA, hidden=3 * 16)  # two experts of a token, and the shared one
    router = 2 * MIXTRAL.context * MIXTRAL.width * 4
    for counting in ((1.0, inf), (inf, 1.0)):
        of_flops = counting[1] == inf
        for model, phase in product((GPT, LLAMA), ("forward", "backward")):
            one, two = (getattr(seconds(model, *counting, t=t), phase) for t in (1, 2))
            assert 2 * two.elementwise == one.elementwise
            assert 2 * two.products == one.products or not of_flops
        experts, dense = seconds(MIXTRAL, *counting, sparse=True).forward, seconds(wide, *counting).forward
        assert experts.elementwise == dense.elementwise and experts.attention == dense.attention
        assert experts.products - router == dense.products or not of_flops


def test_flops_of_published_models_are_two_for_each_weight_that_a_token_meets():
    """Of all but vectors and embeddings; and two for each number of queries, keys and values, for each pair of tokens.
    Flash attention leaves out what the mask hides, and takes five products in backward where forward takes two."""
    for name, model in published().items():
        vectors = model.norm_vectors * model.width * (2 * model.layers + 1) + model.layers * model.biases * (
            2 * model.width + 2 * model.key_width + (1 + model.gated) * model.mlp_hidden + model.width
        )
        if model.latent:
            vectors += model.layers * model.norm_vectors * (model.latent.queries + model.latent.keys_values)
        if model.moe:
            vectors += model.sparse_layers * model.moe.experts * model.moe.bias
        matrices = model.active_parameters - vectors - model.embeddings + model.width * model.vocab
        part = Part(1.0, 1, 1, 1, "flash", 0.5)
        machine = Machine(Accelerator("x", 1.0, inf, {"bf16": 1.0}, ""), PERFECT, "bf16", 2)
        layers = (model.layers - model.sparse_layers, False), (model.sparse_layers, True)
        computed = [(count, block_compute(model, part, machine, sparse)) for count, sparse in layers if count]
        for phase, passes, scores in (("forward", 1, 1), ("backward", 2, 2.5)):
            parts = [(count, getattr(one, phase)) for count, one in computed]
            products = sum(count * one.products for count, one in parts)
            products += getattr(head_compute(model, part, machine), phase).products
            assert products == pytest.approx(2 * passes * matrices, rel=1e-12), name
            attention = sum(count * one.attention for count, one in parts)
            assert attention == pytest.approx(scores * model.scores_flops / 2), name
        assert model.forward_flops == pytest.approx(2 * matrices + model.scores_flops, rel=1e-12)


# ── Memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_layer_keeps_what_korthikanti_counts():
    """Korthikanti et al., 2022: s b h (34 + 5 a s / h) bytes a layer, over t with sequence parallelism."""
    shape = model_of("gpt3-175b")
    s, h, a = shape.context, shape.width, shape.heads
    for b, t, sp in ((1, 1, 0), (4, 1, 0), (1, 8, 1), (4, 8, 1), (1, 8, 0)):
        layout = PlannedLayout(tp=t, sp=sp, micro_batch=b, attention="standard")
        block, scores = saved_by_block(shape, layout, MIXED, False), saved_scores(shape, layout, MIXED)
        alone = s * b * h * (34 / t if sp else 10 + 24 / t)
        assert (block, scores) == pytest.approx((alone, s * b * h * 5 * a * s / h / t), rel=1e-12)


def test_ranks_together_hold_each_parameter_once():
    """But for norms, biases of sums and routers, on all tensor-parallel ranks, and a tied weight at both ends."""
    cases = (1, 1, 1, 1), (8, 1, 1, 8), (4, 4, 1, 2), (2, 8, 2, 1)
    for model, (tp, pp, virtual, ep) in product(published().values(), cases):
        layout = PlannedLayout(tp=tp, pp=pp, virtual=virtual, ep=ep if model.moe else 1, dp=8)
        held = [parameters_of_rank(model, layout, rank) for rank in range(pp)]
        total = sum(tp * rank.dense + tp * layout.ep * rank.experts for rank in held)
        copied = model.layers * model.replicated + model.sparse_layers * model.router
        copied += model.width * (model.context * model.learned_positions + model.norm_vectors)
        tied = model.width * model.vocab * (model.tied and pp > 1)
        assert total - (tp - 1) * copied - tied == pytest.approx(model.parameters, rel=1e-12), (model.name, layout)


def test_stages_have_fewer_layers_where_the_embedding_and_the_head_are():
    assert stages_of(126, 16) == [7, *[8] * 14, 7]  # Llama 3 takes one layer away from both ends
    assert stages_of(126, 128) == [0, *[1] * 126, 0]
    assert stages_of(10, 4) == [2, 3, 3, 2] and stages_of(5, 1) == [5] and stages_of(7, 2) == [4, 3]


# ── Pipelines ────────────────────────────────────────────────────────────────────────────────────────────────────────

PARTS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}  # of a slot of 3; W is a third of it


def played(name: str, slots: list[float], micro_batches: int, virtual: int = 1) -> float:
    """Seconds of a schedule whose ranks need so long for one micro-batch through all of their stages."""
    actions, ranks = schedule(name, len(slots), micro_batches, virtual), len(slots)
    lists = timeline(actions, lambda one: PARTS[one.kind] / 3 * slots[one.stage % ranks] / virtual)
    return max(rank[-1].end for rank in lists)


def planned(name: str, slots: list[float], micro_batches: int, virtual: int = 1) -> float:
    return sum(pipeline_seconds(name, virtual, micro_batches, slots, 1 / 3, 1 / 3))


def test_a_pipeline_takes_and_holds_what_its_schedule_does_played_action_by_action():
    names, counts = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1"), (1, 2, 3, 4, 6, 7, 14)
    for name, p, m, v in product(names, (2, 3, 4, 7), counts, (1, 2, 3)):
        case = name, p, m, v
        if (v > 1 and name != "interleaved") or (name == "interleaved" and m % p):
            continue
        lists, layout = schedule(*case), PlannedLayout(pp=p, schedule=name, virtual=v)
        assert [in_flight(layout, rank, m) for rank in range(p)] == list(map(in_flight_of, lists)), case
        alike = played(name, [3.0] * p, m, v)
        if name == "zb-h1" and m < p:  # too few products for weights: a lower bound, and 1F1B an upper one
            assert planned(name, [3.0] * p, m) <= alike <= planned("1f1b", [3.0] * p, m), case
        else:
            assert alike == pytest.approx(planned(name, [3.0] * p, m, v), abs=1e-9), case
    last_is_slowest = [3, 3, 3, 6], [3, 6, 9, 12], [3, 12], [6, 9, 6, 3, 9]  # it has the head
    for name, slots, m in product(("naive", "gpipe", "1f1b", "zb-h1"), last_is_slowest, (1, 2, 5, 8, 13)):
        if name != "zb-h1" or m >= len(slots):
            assert played(name, slots, m) == pytest.approx(planned(name, slots, m)), (name, slots, m)
    for slots, m in product(([9, 6, 4, 3], [6, 3, 3, 3], [3, 3, 6, 3], [12, 3]), (2, 5, 8, 30)):
        bound = planned("1f1b", slots, m)  # another is: it runs forwards ahead while the others work
        assert m * max(slots) <= played("1f1b", slots, m) < bound == pytest.approx(played("gpipe", slots, m)), slots


# ── Links ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_in_a_node_collectives_take_what_a_ring_takes_step_by_step():
    spec, links = ClusterSpec.parse("h100:8"), Links(Link(400e9, 0.0), Link(50e9, 0.0))
    insides = [replace(spec.inside, bandwidth=400e9, latency=latency) for latency in (0.0, 1e-6)]
    network, late = (Network(replace(spec, inside=inside), PERFECT) for inside in insides)
    for number, nbytes in product((2, 3, 5, 7, 8), (840.0, 840e6)):
        group = Group(number, 1, 8)
        found = {
            "all_gather_into_tensor": network.all_gather(group, nbytes),
            "reduce_scatter_tensor": network.reduce_scatter(group, nbytes),
            "all_reduce": network.all_reduce(group, nbytes),
            "all_to_all_single": network.all_to_all(group, nbytes),
        }
        for name, seconds_found in found.items():
            algorithm = "pairwise" if name == "all_to_all_single" else "ring"
            stepwise = cost.seconds(name, algorithm, nbytes, (0,) * number, links)
            assert seconds_found == pytest.approx(stepwise), (name, number)
        assert late.all_gather(group, nbytes) - network.all_gather(group, nbytes) == pytest.approx((number - 1) * 1e-6)


def test_between_nodes_a_ring_passes_on_what_flows_out_of_a_node():
    """The largest flow from a group's ranks on one node to its others, in the cluster's network as a graph."""
    for text in ("h100:4x8", "a100:4x8,between=ethernet100", "h100:4x4"):
        spec = ClusterSpec.parse(text)
        n, network, graph = spec.node_size, Network(spec, PERFECT), topology_of(spec)
        for size, stride in ((4 * n, 1), (2 * n, 1), (4, n), (8, n // 2)):
            group, members = network.group(size, stride), range(0, size * stride, stride)
            here, others = ({graph.chips[rank] for rank in members if (rank < n) == inside} for inside in (True, False))
            absent = {*graph.chips} - here - others  # whose ports are not the group's
            capacities = {edge: link.bandwidth for edge, link in graph.links.items() if not absent & {*edge}}
            limit = spec.inside.bandwidth if len(here) > 1 else inf
            flow = min(max_flow(capacities, here, others), limit)
            assert network.bus_bandwidth(group, 1e9) == pytest.approx(flow), (text, size, stride)
            assert group.leaves_node and group.per_node == len(here)


# ── The whole step ───────────────────────────────────────────────────────────────────────────────────────────────────

LAYOUTS = (
    "tp=8", "tp=8,sp=1,pp=4,virtual=2", "tp=4,pp=8,schedule=gpipe", "dp=64,zero=3,recompute=full", "tp=8,dp=8,zero=1",
    "tp=2,cp=4,dp=8", "tp=2,cp=4,cp_kind=ulysses,dp=8", "tp=8,pp=8,schedule=zb-h1", "dp=64,zero=3,shard=8",
)  # fmt: skip


def test_more_of_anything_is_never_slower_and_more_recomputation_never_holds_more():
    spec = ClusterSpec.parse("h100:8x8")
    chip, flops = spec.accelerator, {key: 2 * peak for key, peak in spec.accelerator.flops.items()}
    faster = [replace(spec, accelerator=replace(chip, memory_bandwidth=2 * chip.memory_bandwidth))]
    faster += [replace(spec, accelerator=replace(chip, flops=flops))]
    for links in ("inside", "between"):
        link = getattr(spec, links)
        faster.append(replace(spec, **{links: replace(link, bandwidth=2 * link.bandwidth)}))
    for name, text in product(("llama3-8b", "gpt3-175b", "mixtral-8x7b"), LAYOUTS):
        model, layout = model_of(name), replace(PlannedLayout.parse(text, 64), attention="standard")
        costs = [StepCosts(model, one, "bf16", efficiency=PERFECT) for one in (spec, *faster)]
        base, *others = (plan_run(one, layout, 512) for one in costs)
        most = base.step_seconds * (1 + 1e-12)
        assert base.step_seconds == sum(asdict(base.time).values()) and min(asdict(base.time).values()) >= 0.0
        assert costs[0].least_seconds(layout, 512) <= most, text  # what a search prunes by
        assert max(run.step_seconds for run in others) <= most, (name, text)
        for one in base.sent:
            assert 0 <= one.exposed <= one.seconds * (1 + 1e-12) and one.nbytes > 0
        runs = [plan_run(costs[0], replace(layout, recompute=mode), 512) for mode in ("none", "selective", "full")]
        held, seconds = [run.memory.activations for run in runs], [run.step_seconds for run in runs]
        assert held == sorted(held, reverse=True) and held[1] > held[2] > 0 and seconds == sorted(seconds)
