"""The plan's seconds against the cluster's clock: real runs, replayed on hardware whose memory is infinitely fast.

Then only products and links take time, and both sides are arithmetic on the same numbers. What computes agrees to
rounding, for every layout, schedule and recomputation. Of what is sent, the plan leaves out scalars, statistics of the
loss and gradients of norms; and it knows no buckets.
"""

from dataclasses import asdict, replace

import pytest
from planned import planned_of, real_layout, shape_of

from minidist.analysis.clock.as_if import as_if
from minidist.analysis.clock.report import report
from minidist.comm import collectives
from minidist.comm.nodes import cost
from minidist.comm.nodes.placement import Link, Links
from minidist.plan.cluster.efficiency import PERFECT
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import HERE
from minidist.plan.models.library import model_of
from minidist.plan.planned_run import plan_run
from minidist.plan.step.collectives import Group, Network
from minidist.plan.time import StepCosts, StepTime
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run, train_rank

CONFIG = TrainConfig(layers=4, heads=4, width=64, context=64, global_batch=4, micro_batch=1, steps=1, dropout=0.1)
SMALL = 1e-6  # relative: the clock writes times in float64 sums of thousands of kernels, and the plan multiplies
SCALARS = 400  # bytes at most, one after another: the gradient's norm (a maximum, a count, a sum) and the loss
NEVER = 1e30  # bytes/s: such a link takes no time


def cluster(ranks: int, bandwidth: float) -> ClusterSpec:
    """One node of H100s with such links, without latency, and with memory that takes no time."""
    spec = ClusterSpec.parse(f"h100:1x{ranks}")
    return replace(
        spec,
        accelerator=replace(spec.accelerator, memory_bandwidth=NEVER),
        inside=replace(spec.inside, bandwidth=bandwidth, latency=0.0),
    )


def ring_rank(world, config, layout, options):
    """A rank of a run in which small arrays, too, are summed by algorithms that send as little as possible."""
    before, collectives.FEW_STEPS_BYTES = collectives.FEW_STEPS_BYTES, 0
    try:
        return train_rank(world, config, layout, options)
    finally:
        collectives.FEW_STEPS_BYTES = before


recordings: dict[str, tuple[Layout, list[list]]] = {}


def recorded(ranks, text: str) -> tuple[Layout, list[list]]:
    """The traces of a real run's ranks: of one run, whoever asks."""
    if text not in recordings:
        layout = real_layout(text, CONFIG)
        found = run(ranks(layout.world_size), CONFIG, layout, RunOptions(trace=True), rank_function=ring_rank)
        recordings[text] = layout, [rank.log for rank in found.ranks]
    return recordings[text]


def both(
    layout: Layout, logs: list[list], bandwidth: float, config: TrainConfig = CONFIG
) -> tuple[float, StepTime, dict]:
    """Seconds of a step on the clock, and in the plan with what is sent, by axis and collective."""
    spec = cluster(layout.world_size, bandwidth)
    costs = StepCosts(shape_of(config), spec, "fp32", HERE, PERFECT)
    time, sent = costs.step(planned_of(layout, config), config.global_batch)
    return report(as_if(logs, spec, 1.0, 1.0)).seconds, time, {(one.axis, one.collective): one for one in sent}


@pytest.mark.parametrize(
    "text",
    [
        "dp=1", "tp=2", "dp=2,zero=3", "pp=2,virtual=2",
        *(pytest.param(text, marks=pytest.mark.long) for text in (
            "recompute=selective", "recompute=full", "dp=4", "tp=4,sp=1", "pp=2", "pp=4", "pp=4,schedule=gpipe",
            "pp=2,schedule=naive", "pp=2,schedule=interleaved", "pp=4,schedule=zb-h1", "pp=2,schedule=zb-h1",
            "pp=2,recompute=full", "tp=2,pp=2,dp=2",
        )),
    ],
)  # fmt: skip
def test_computing_and_bubbles(ranks, text):
    """On links that take no time."""
    clock, plan, _ = both(*recorded(ranks, text), NEVER)
    assert plan.total == pytest.approx(clock, rel=SMALL)
    assert (plan.bubble > 0) == ("pp=" in text)


@pytest.mark.long
@pytest.mark.parametrize("text", ["tp=2", "tp=4", "tp=2,sp=1", "tp=4,sp=1", "tp=2,recompute=full"])
@pytest.mark.parametrize("bandwidth", [1e12, 1e11])
def test_tensor_parallelism_is_exposed(ranks, text, bandwidth):
    """The plan is short of a few small sums, and long by what the embedding looks up: float32 here."""
    layout, logs = recorded(ranks, text)
    clock, plan, sent = both(layout, logs, bandwidth)
    tokens, t, m = CONFIG.context, layout.tp, CONFIG.global_batch
    ring = 2 * (t - 1) / t / bandwidth  # seconds of an all-reduce, for each byte
    loss = m * ring * tokens * (8 + 8 + 4)  # two sums in float64 and a maximum, for each token
    norms = layout.sp * m * ring * 8 * CONFIG.width * (6 * CONFIG.layers + 2)  # gains and biases; biases of sums
    looked_up = (not layout.sp) * m * ring * tokens * CONFIG.width * (8 - 4)
    assert plan.total + loss + norms - looked_up == pytest.approx(clock, abs=SCALARS / bandwidth)
    if layout.recompute == "none":
        assert plan.tp == sent["tp", "all_gather, reduce_scatter" if layout.sp else "all_reduce"].seconds


@pytest.mark.parametrize("text", ["pp=2", "pp=4", "pp=4,schedule=gpipe", "pp=2,virtual=2", "pp=4,schedule=zb-h1"])
@pytest.mark.parametrize("bandwidth", [1e13, 1e12])
def test_messages_of_a_pipeline(ranks, text, bandwidth):
    """By the plan a rank waits for every message. Where it has slack they hide; those that fill and drain never do."""
    layout, logs = recorded(ranks, text)
    clock, plan, sent = both(layout, logs, bandwidth)
    without, _, _ = both(layout, logs, NEVER)
    tied = sent["pp", "all_reduce"].seconds
    message = CONFIG.context * CONFIG.width * 4 / bandwidth
    filling = 2 * (layout.pp - 1) * message
    assert without + tied + filling <= clock * (1 + SMALL)
    waits = CONFIG.global_batch * 2 * layout.virtual * message
    late = message * ("zb-h1" in text)  # with so few micro-batches its last products wait for one message more
    assert clock - late - SCALARS / bandwidth <= plan.total <= without + tied + filling + waits


def test_naive_pipelines_wait_for_every_message(ranks):
    layout, logs = recorded(ranks, "pp=3,schedule=naive")
    clock, plan, _ = both(layout, logs, 1e12)
    assert plan.total == pytest.approx(clock, abs=SCALARS / 1e12)


@pytest.mark.long
@pytest.mark.parametrize("text", ["dp=4,bucket_mb=0.05", "dp=2,bucket_mb=0.05"])
@pytest.mark.parametrize("bandwidth", [1e13, 1e12, 1e11])
def test_gradients_hide_behind_backward(ranks, text, bandwidth):
    """The plan sends what is ready at any time, and sees the last of as many parts as there are layers. Real gradients
    wait for their bucket, and the tied embedding's for the end: what differs is at most one layer's and the head's."""
    layout, logs = recorded(ranks, text)
    clock, plan, sent = both(layout, logs, bandwidth)
    without, _, _ = both(layout, logs, NEVER)
    shape, all_reduce = shape_of(CONFIG), sent["dp", "all_reduce"]
    one_layer = without / (CONFIG.global_batch / layout.dp) / CONFIG.layers
    ends = all_reduce.seconds * (shape.embeddings + shape.dense_block) / shape.parameters
    assert without + all_reduce.exposed == pytest.approx(plan.total, rel=SMALL)
    assert abs(clock - plan.total) <= one_layer + min(ends, all_reduce.seconds / 2)


@pytest.mark.parametrize("bandwidth", [1e12, 1e11])
def test_zero_1_hides_nothing_here(ranks, bandwidth):
    """Its gradients are summed when backward is over, and its parameters gathered after the update: all is exposed.

    The plan hides both, as Megatron-LM's distributed optimizer does; seconds of each are those of the clock."""
    layout, logs = recorded(ranks, "dp=4,zero=1")
    clock, plan, sent = both(layout, logs, bandwidth)
    without, _, _ = both(layout, logs, NEVER)
    seconds = sum(one.seconds for one in sent.values())
    assert clock == pytest.approx(without + seconds, abs=SCALARS / bandwidth)
    assert plan.total < clock


# ── Closed forms ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("number", [2, 3, 5, 7, 8])
def test_collectives_are_the_ring_s(number):
    """On one node, but for latencies: a ring of comm/nodes/cost.py pays one for each step."""
    spec = cluster(8, 400e9)
    network, links = Network(spec, PERFECT), Links(Link(400e9, 0.0), Link(50e9, 0.0))
    group, nodes = Group(number, 1, 8), (0,) * number
    for nbytes in (840.0, 840e6):
        for name, planned in (
            ("all_gather_into_tensor", network.all_gather),
            ("reduce_scatter_tensor", network.reduce_scatter),
            ("all_reduce", network.all_reduce),
        ):
            assert planned(group, nbytes) == pytest.approx(cost.seconds(name, "ring", nbytes, nodes, links))
        exchange = cost.seconds("all_to_all_single", "pairwise", nbytes, nodes, links)
        assert network.all_to_all(group, nbytes) == pytest.approx(exchange)
    late = Network(replace(spec, inside=replace(spec.inside, latency=1e-6)), PERFECT)
    assert late.all_gather(group, 840e6) - network.all_gather(group, 840e6) == pytest.approx((number - 1) * 1e-6)


LAYOUTS = (
    "tp=8", "tp=8,sp=1,pp=4,virtual=2", "tp=4,pp=8,schedule=gpipe", "dp=64,zero=3,recompute=full", "tp=8,dp=8,zero=1",
    "tp=2,cp=4,dp=8", "tp=2,cp=4,cp_kind=ulysses,dp=8", "tp=8,pp=8,schedule=zb-h1", "dp=64,zero=3,shard=8",
)  # fmt: skip


@pytest.mark.parametrize("name", ["llama3-8b", "gpt3-175b", "mixtral-8x7b"])
def test_more_of_anything_is_never_slower(name):
    """Faster links, faster memory, faster arithmetic."""
    spec = ClusterSpec.parse("h100:8x8")
    model = model_of(name)
    chip = spec.accelerator
    flops = {key: 2 * peak for key, peak in chip.flops.items()}
    faster = {
        "links in a node": replace(spec, inside=replace(spec.inside, bandwidth=2 * spec.inside.bandwidth)),
        "links between nodes": replace(spec, between=replace(spec.between, bandwidth=2 * spec.between.bandwidth)),
        "memory": replace(spec, accelerator=replace(chip, memory_bandwidth=2 * chip.memory_bandwidth)),
        "arithmetic": replace(spec, accelerator=replace(chip, flops=flops)),
    }
    for text in LAYOUTS:
        layout = PlannedLayout.parse(text, spec.world_size)
        base = plan_run(StepCosts(model, spec, "bf16", efficiency=PERFECT), layout, 512)
        assert base.step_seconds == sum(asdict(base.time).values()) and min(asdict(base.time).values()) >= 0.0
        for what, better in faster.items():
            planned = plan_run(StepCosts(model, better, "bf16", efficiency=PERFECT), layout, 512)
            assert planned.step_seconds <= base.step_seconds * (1 + 1e-12), (text, what)
        for one in base.sent:
            assert 0 <= one.exposed <= one.seconds * (1 + 1e-12) and one.nbytes > 0


def test_recomputation_costs_time():
    spec, model = ClusterSpec.parse("a100:1x8"), model_of("gpt3-175b")
    costs = StepCosts(model, spec, "bf16")
    seconds = [
        plan_run(costs, PlannedLayout(tp=8, recompute=mode), 8).step_seconds for mode in ("none", "selective", "full")
    ]
    assert seconds == sorted(set(seconds))


def test_the_lower_bound_is_one():
    """What a search prunes by is never above the step."""
    spec, model = ClusterSpec.parse("h100:8x8"), model_of("llama3-8b")
    costs = StepCosts(model, spec, "bf16")
    for text in LAYOUTS:
        layout = replace(PlannedLayout.parse(text, spec.world_size), attention="flash")
        assert costs.least_seconds(layout, 512) <= costs.step(layout, 512)[0].total * (1 + 1e-12), text
