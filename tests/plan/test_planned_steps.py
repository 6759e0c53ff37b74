"""The parts of a planned step: kernels and what they move, pipelines against schedules, links against graphs."""

from collections import Counter
from dataclasses import asdict, replace
from itertools import product
from math import inf, lcm

import pytest

from minidist.comm import cost
from minidist.comm.placement import Link, Links
from minidist.parallel.tools.schedule_check import in_flight as in_flight_of
from minidist.parallel.tools.schedule_check import timeline
from minidist.parallel.tools.schedules import schedule
from minidist.plan.cluster.efficiency import PERFECT
from minidist.plan.cluster.hardware import Accelerator, ClusterSpec
from minidist.plan.cluster.topologies import topology_of
from minidist.plan.cluster.topology import max_flow
from minidist.plan.layout import PlannedLayout, stages_of
from minidist.plan.memory import MIXED, in_flight, parameters_of_rank, saved_by_block, saved_scores
from minidist.plan.models import Experts, ModelShape, model_of, published
from minidist.plan.step.collectives import Group, Network
from minidist.plan.step.kernels import Compute, Machine, Part, block_compute, head_compute
from minidist.plan.time import StepCosts, pipeline_seconds

GPT = ModelShape("gpt", layers=1, width=24, heads=6, vocab=30, context=10)
LLAMA = ModelShape("llama", 1, 24, 6, 30, 10, kv_heads=2, hidden=20, gated=True, learned_positions=False, dropout=False)
MIXTRAL = replace(LLAMA, moe=Experts(4, 2, 16, shared=1))


LAYER = """
    elementwise: x x -> x x x x  # norm; backward reads the input and adds the other branch's gradient
    products: x Wqkv qkv
    rotary: qk qk -> qk qk
    attention: heads heads scores
    attention: scores scores -> scores scores scores  # softmax
    dropout of attention: scores scores mask_of_scores -> scores mask_of_scores scores
    attention: scores heads heads
    products: x Wo x
    elementwise: x x mask x ->  # dropout and residual
    dropout: -> x mask x
    elementwise: x x -> x x x x
    products: x Wup up
    elementwise: up inner -> inner up up  # activation
    products: inner Wdown x
    elementwise: x x mask x ->
    dropout: -> x mask x
"""


def moved(model: ModelShape) -> tuple[Counter, Counter]:
    """Bytes that kernels of each kind read and write, forward and backward: 8 for each number, and 1 of a mask."""
    n, h, inner, scores = model.context, model.width, model.mlp_hidden, model.heads * model.context**2
    columns = {"qkv": h + 2 * model.key_width, "o": h, "up": (1 + model.gated) * inner}
    sizes = {"x": n * h, "heads": n * h, "qk": n * (h + model.key_width), "inner": n * inner, "scores": scores}
    sizes |= {"qkv": n * columns["qkv"], "up": n * columns["up"], "Wdown": inner * h}
    sizes |= {f"W{name}": h * count for name, count in columns.items()}
    sizes |= {"mask": n * h * model.dropout / 8, "mask_of_scores": scores / 8}
    found = Counter(), Counter()
    for line in LAYER.strip().splitlines():
        kind, _, arrays = line.partition("#")[0].strip().partition(":")
        if ("dropout" in kind and not model.dropout) or (kind == "rotary" and model.learned_positions):
            continue
        kind = "attention" if "attention" in kind else "products" if kind == "products" else "elementwise"
        forward, arrow, backward = arrays.partition("->")
        if not arrow:  # a product: its gradients are two, and a weight's adds, in float32, to what earlier ones left
            a, b, c = forward.split()
            backward = f"{c} {b} {a} {a} {c} {b} {b if b.startswith('W') else ''}"
        for counter, phase in zip(found, (forward, backward), strict=True):
            counter[kind] += 8 * sum(sizes[name] for name in phase.split())
    return found


def seconds(model: ModelShape, flops: float, bandwidth: float, t: int = 1, sparse: bool = False) -> Compute:
    """Return one layer's seconds on a chip with so many FLOP/s and bytes/s. If one is infinite, the other counts."""
    part = Part(model.context, t, t, 1, "standard", 1.0)
    chip = Accelerator("x", 1.0, bandwidth, {"bf16": flops}, "")
    return block_compute(model, part, Machine(chip, PERFECT, "bf16", element=8), sparse)


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=lambda model: model.name)
def test_a_layer_moves_what_its_kernels_read_and_write(model):
    """The oracle has as few kernels as possible, each of which reads all that it needs."""
    compute = seconds(model, inf, 1.0)
    assert (asdict(compute.forward), asdict(compute.backward)) == moved(model)


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
    """Each pair of tokens adds two for each number of queries, keys and values; backward has twice as many products.
    Flash attention leaves out what the mask hides, and takes five products in backward where forward takes two."""
    machine = Machine(Accelerator("x", 1.0, inf, {"bf16": 1.0}, ""), PERFECT, "bf16", 2)
    part = Part(1, 1, 1, 1, "flash", 0.5)
    for name, model in published().items():
        matrices = model.active_parameters - model.embeddings + model.width * model.vocab
        assert model.forward_flops == pytest.approx(2 * matrices + model.scores_flops, rel=1e-3), name  # and vectors
        dense, sparse = (block_compute(model, part, machine, sparse) for sparse in (False, bool(model.moe)))
        head = head_compute(model, part, machine)
        for phase, passes, scores in (("forward", 1, 1), ("backward", 2, 2.5)):
            blocks = getattr(dense, phase) * (model.layers - model.sparse_layers)
            blocks += getattr(sparse, phase) * model.sparse_layers
            products = (model.forward_flops - model.scores_flops) * passes
            assert blocks.products + getattr(head, phase).products == pytest.approx(products, rel=1e-12), name
            assert blocks.attention == pytest.approx(scores * model.scores_flops / 2), name


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
    """Exceptions: all tensor-parallel ranks hold norms, biases of sums and routers; both ends hold a tied weight."""
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


def test_in_a_node_collectives_take_what_a_ring_takes_step_by_step():
    spec, links = ClusterSpec.parse("h100:8"), Links(Link(400e9, 0.0), Link(50e9, 0.0))
    insides = [replace(spec.inside, bandwidth=400e9, latency=latency) for latency in (0.0, 1e-6)]
    network, late = (Network(replace(spec, inside=inside), PERFECT) for inside in insides)
    for number, nbytes in product((2, 3, 5, 7, 8), (840.0, 840e6)):
        group = Group(number, 1, number)
        for name in ("all_gather_into_tensor", "reduce_scatter_tensor", "all_reduce", "all_to_all_single"):
            taken = getattr(network, name.removesuffix("_into_tensor").removesuffix("_tensor").removesuffix("_single"))
            algorithm = "pairwise" if name == "all_to_all_single" else "ring"
            stepwise = cost.seconds(name, algorithm, nbytes, (0,) * number, links)
            assert taken(group, nbytes) == pytest.approx(stepwise), (name, number)
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


def test_where_nodes_cut_groups_the_smallest_part_of_one_sets_the_pace():
    for size, stride, n in product(range(1, 7), range(1, 5), range(1, 13)):
        world = lcm(size * stride, n)
        firsts = [first for first in range(world) if first % (size * stride) < stride]
        parts = [Counter(rank // n for rank in range(first, first + size * stride, stride)) for first in firsts]
        group = Group(size, stride, n)
        assert group.per_node == min(min(part.values()) for part in parts), (size, stride, n)
        assert group.leaves_node == any(len(part) > 1 for part in parts), (size, stride, n)


def test_in_one_node_gradients_of_experts_stay_inside_with_context_parallel_ranks_too():
    costs = StepCosts(model_of("mixtral-8x7b"), ClusterSpec.parse("h100:8"), "bf16", efficiency=PERFECT)
    _, sent = costs.step(PlannedLayout(dp=4, cp=2, ep=2, attention="flash"), 8)
    (gradients,) = (one for one in sent if one.axis == "dp")
    assert gradients.seconds == pytest.approx(gradients.nbytes / costs.cluster.inside.bandwidth, rel=1e-3)


@pytest.mark.parametrize("cp", [1, 2, 3, 8])
def test_a_plain_ring_waits_in_each_step_for_its_slowest_rank(cp):
    """Rank r meets the keys of rank r, r - 1, ... in turn: half of its own, all of earlier ones, none of later."""
    seen = [[0.5 if hop == 0 else float(hop <= rank) for hop in range(cp)] for rank in range(cp)]
    slowest = sum(map(max, zip(*seen, strict=True)))
    model = model_of("layers=6,width=1536,heads=6,vocab=6000,context=768")
    costs = StepCosts(model, ClusterSpec.parse("h100:1x8"), "bf16")
    assert costs.part(PlannedLayout(cp=cp, cp_kind="ring")).pairs == pytest.approx(slowest / cp)
    assert costs.part(PlannedLayout(cp=cp, cp_kind="zigzag")).pairs == 0.5
