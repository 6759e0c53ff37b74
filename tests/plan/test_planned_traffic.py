"""The bytes of a plan against the counters of real runs: equal, for all that grows with the model.

A counter's rows are summed over the ranks of a group: an all-reduce of a small array may run as a tree, in which some
ranks send more and others less, together as much as in a ring. What is not in a plan is a few numbers for each token
(the loss), each norm (its gradients under sequence parallelism) or each step: those rows are left out by their size.
"""

from collections import Counter
from dataclasses import replace

import pytest
from planned import planned_of, real_layout, shape_of

from minidist.plan.cluster.efficiency import PERFECT
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.memory import HERE
from minidist.plan.time import StepCosts
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import run

CONFIG = TrainConfig(layers=4, heads=4, width=32, context=16, global_batch=8, micro_batch=1, steps=2)
STREAM = CONFIG.context * CONFIG.width  # elements of a micro-batch between two layers
CHUNKS = replace(CONFIG, sequence_chunks=4)
NAMES = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}


def counted(ranks, text: str, config: TrainConfig = CONFIG) -> tuple[Layout, list[Counter]]:
    """What each rank sent in a step, by axis and collective: of arrays larger than the tokens or a norm."""
    layout = real_layout(text, config)
    found = []
    for rank in run(ranks(layout.world_size), config, layout).ranks:
        found.append(Counter())
        for row in rank.collectives:
            if row["elements"] > max(config.context * config.micro_batch, config.width):
                found[-1][row["axis"], row["name"]] += row["bytes_sent"]
    return layout, found


def planned(layout: Layout, config: TrainConfig = CONFIG) -> Counter:
    """What one rank sends by the plan: with a pipeline the slowest one, which here has the head."""
    costs = StepCosts(shape_of(config), ClusterSpec.parse(f"h100:1x{layout.world_size}"), "fp32", HERE, PERFECT)
    sent = costs.step(planned_of(layout, config), config.global_batch)[1]
    return Counter({(one.axis, NAMES.get(one.collective, one.collective)): one.nbytes for one in sent})


@pytest.mark.parametrize(
    "text",
    [
        "dp=2", "dp=4", "dp=4,zero=1", "dp=2,zero=2", "dp=2,zero=2,grad_sync=step", "dp=4,zero=3",
        "dp=2,zero=3,reshard_after_forward=0", "dp=4,zero=2,shard=2", "dp=2,zero=1,pp=2",
    ],
)  # fmt: skip
def test_gradients_and_parameters(ranks, text):
    layout, found = counted(ranks, text)
    expected = {name: nbytes for (axis, name), nbytes in planned(layout).items() if axis == "dp"}
    last = found[-1]
    assert {name: n for (axis, name), n in last.items() if axis in ("dp", "shard", "replicate")} == expected != {}
    if layout.pp == 1:
        assert all(one == last for one in found)


@pytest.mark.parametrize("text", ["dp=2,zero=3,pp=2", "dp=2,zero=3,pp=2,reshard_after_forward=0"])
def test_a_tied_weight_waits_for_the_other_end_of_a_pipeline(ranks, text):
    """Both ends sum its gradient before it is sharded: here its unit is summed once a step, not in each micro-batch."""
    layout, found = counted(ranks, text)
    plan, micro_batches = planned(layout), CONFIG.global_batch // layout.dp
    root = HERE.gradient * (shape_of(CONFIG).vocab + 2) * CONFIG.width  # with the last norm
    gradients = plan["dp", "reduce_scatter_tensor"] - (micro_batches - 1) * root / 2
    assert found[-1]["shard", "reduce_scatter_tensor"] == gradients
    assert found[-1]["shard", "all_gather_into_tensor"] == plan["dp", "all_gather_into_tensor"]


@pytest.mark.long
@pytest.mark.parametrize("number", [3, 5, 7])
def test_any_number_of_ranks(ranks, number):
    config = replace(CONFIG, global_batch=number)
    layout, found = counted(ranks, f"dp={number},algorithm=ring", config)
    sent = sum(one["dp", "all_reduce"] for one in found)
    assert sent == pytest.approx(number * planned(layout, config)["dp", "all_reduce"], rel=1e-12)
    # ZeRO pads each of its units, so that ranks divide it: fewer elements than ranks, in each of 5 units
    layout, found = counted(ranks, f"dp={number},zero=1", config)
    plan = planned(layout, config)["dp", "reduce_scatter_tensor"]
    for one in found:
        assert 0 <= one["shard", "reduce_scatter_tensor"] - plan <= 5 * (number - 1) * HERE.gradient


@pytest.mark.long
@pytest.mark.parametrize("text", ["tp=2", "tp=4", "tp=2,recompute=full", "tp=2,sp=1", "tp=4,sp=1", "tp=2,dp=2"])
def test_tensor_parallelism(ranks, text):
    """Sums travel in float64. Only what the embedding looks up does not, a row and zeros, which are exact in float32:
    so a plan has 4 bytes too many for each of its numbers. With sp it is all-reduced here, and then split: as many
    bytes as the plan's reduce-scatter in float64."""
    layout, found = counted(ranks, text)
    sent = sum(nbytes for one in found for (axis, _), nbytes in one.items() if axis == "tp")
    plan = sum(nbytes for (axis, _), nbytes in planned(layout).items() if axis == "tp")
    looked_up = 0
    if not layout.sp:
        looked_up = CONFIG.global_batch / layout.dp * 2 * (layout.tp - 1) / layout.tp * STREAM * (8 - 4)
    assert sent == layout.world_size * (plan - looked_up)


@pytest.mark.long
@pytest.mark.parametrize(
    "text", ["pp=2", "pp=4", "pp=2,virtual=2", "pp=2,schedule=zb-h1", "tp=2,sp=1,pp=2", "tp=2,pp=2"]
)
def test_pipelines(ranks, text):
    """Tensor-parallel ranks send a part each in a plan; here only with sequence parallelism, where they have a part."""
    layout, found = counted(ranks, text)
    plan = planned(layout)
    parts = 1 if layout.sp else layout.tp
    assert found[-1]["pp", "send"] == parts * plan["pp", "send"]
    messages = 2 * (layout.stage_count - 1) * CONFIG.global_batch
    assert sum(one["pp", "send"] for one in found) == messages * STREAM * 4 * (1 if layout.sp else layout.tp)
    for one in (found[0], found[-1]):
        assert one["embedding", "all_reduce"] == plan["pp", "all_reduce"]


@pytest.mark.long
@pytest.mark.parametrize("number", [2, 4])
@pytest.mark.parametrize("kind", ["ring", "zigzag", "all-gather", "ulysses"])
def test_context_parallelism(ranks, number, kind):
    """Keys and values travel twice, as in the plan. Their gradients are pairs of float64 here, 16 bytes for 4, and go
    all the way round a ring, N steps for the plan's N - 1, to come back to where their keys are."""
    config = replace(CHUNKS, sequence_chunks=2 * number)
    layout, found = counted(ranks, f"cp={number},cp_kind={kind}", config)
    plan = planned(layout, config)["cp", kind]
    steps = number / (number - 1) if kind in ("ring", "zigzag") else 1
    pairs = plan / 3 * 4 * steps if kind != "ulysses" else 0
    for one in found:
        sent = sum(nbytes for (axis, _), nbytes in one.items() if axis == "cp")
        assert sent == (plan if kind == "ulysses" else plan * 2 / 3 + pairs)
