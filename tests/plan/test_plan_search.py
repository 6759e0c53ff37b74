"""The search against all layouts, planned one by one; and what is said where nothing fits."""

from contextlib import suppress
from dataclasses import replace
from itertools import product

import pytest
from choosing import long

from minidist.nn.config import divisors
from minidist.nn.recompute import MODES
from minidist.plan.cluster.efficiency import PERFECT
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import memory_of
from minidist.plan.models import ModelShape, model_of
from minidist.plan.planned_run import plan_run
from minidist.plan.search import least_memory, relatives, search, what_would_help, why_slower
from minidist.plan.time import StepCosts

SMALL = model_of("layers=6,width=1536,heads=6,vocab=6000,context=768")
CASES = {  # model, cluster, batch
    "small": (replace(SMALL, layers=4), "h100:4", 8),
    "nodes": (SMALL, "v100:2x3", 12),
    "threes": (model_of("layers=5,width=15360,heads=15,vocab=5000,context=900"), "a100:3x5", 15),
    "tight": (model_of("layers=20,width=8192,heads=8,vocab=32000,context=2048"), "a100:2x4", 8),
    "experts": (replace(model_of("mixtral-8x7b"), layers=12), "h100:2x4", 8),
}


def costs_of(model: ModelShape, cluster: str) -> StepCosts:
    spec = ClusterSpec.parse(cluster)
    return StepCosts(model, spec, "bf16" if "bf16" in spec.accelerator.flops else "fp16")


def every_layout(costs: StepCosts, batch: int):
    """All legal layouts, by trying all values of all keys."""
    world, model, axes = costs.cluster.world_size, costs.model, range(1, costs.cluster.world_size + 1)
    for tp, cp, pp, dp in product(axes, repeat=4):
        if tp * cp * pp * dp != world:
            continue
        stages = range(1, (model.layers + 2) // pp + 1) if pp > 1 else [1]
        experts = [n for n in range(1, dp + 1) if dp % n == 0] if model.moe else [1]
        for sp, ep, zero, recompute, micro_batch, virtual in product(
            (0, 1), experts, range(4), MODES, range(1, batch // dp + 1), stages
        ):
            degrees = {"dp": dp, "tp": tp, "cp": cp, "pp": pp, "sp": sp, "ep": ep, "zero": zero, "virtual": virtual}
            with suppress(ValueError):
                layout = PlannedLayout(
                    **degrees, recompute=recompute, micro_batch=micro_batch, attention=costs.efficiency.attention
                )
                if not layout.problem(model, batch):
                    yield layout


def is_searched(layout: PlannedLayout, layers: int) -> bool:
    """Whether the search looks at a layout: sequence parallelism where it is legal, and even stages."""
    even = layout.virtual == 1 or layers % layout.stage_count == 0 or layout.stage_count == layers + 2
    flash = layout.recompute == "selective" and layout.attention == "flash"
    return even and not flash and bool(layout.sp) == (layout.tp > 1)


@pytest.mark.parametrize("case", ["small", *map(long, list(CASES)[1:])])
def test_nothing_that_was_skipped_would_have_won(case):
    """The oracle tries every value of every key: sp=0, uneven stages, and all else that the search skips. And no layout
    is below the two bounds by which groups of them are skipped."""
    model, cluster, batch = CASES[case]
    costs, slack = costs_of(model, cluster), 1 + 1e-9
    runs, bounds = [], {}
    for layout in every_layout(costs, batch):
        run = plan_run(costs, layout, batch)
        runs.append(run)
        if is_searched(layout, model.layers):
            group = replace(layout, zero=0, virtual=1, schedule="1f1b")
            if group not in bounds:
                bounds[group] = costs.least_seconds(group, batch), least_memory(costs, group, batch)
            assert bounds[group][0] <= run.step_seconds * slack and bounds[group][1] <= run.memory.total * slack, layout
    fitting = sorted((run for run in runs if run.fits), key=lambda run: run.step_seconds)
    even = [run.step_seconds for run in fitting if is_searched(run.layout, model.layers)]
    found = search(costs, batch, top=3)
    assert len(fitting) > 20 and found.legal == sum(is_searched(run.layout, model.layers) for run in runs)
    alike = 1e-3  # layouts that agree to four digits
    assert [run.step_seconds for run in found.best] == pytest.approx(even[:3], rel=alike)
    assert even[0] <= fitting[0].step_seconds * (1 + alike) or not is_searched(fitting[0].layout, model.layers)


def test_what_does_not_fit_is_told_what_would_help_and_the_second_why_it_loses():
    costs = costs_of(model_of("layers=32,width=4096,heads=32,vocab=32000,context=2048"), "h100:8")
    run = plan_run(costs, PlannedLayout(dp=8), 64)
    ways = dict(what_would_help(costs, run))
    assert not run.fits and all(other.fits for other in ways.values()) and "zero=1" in ways
    assert {*ways} <= {*relatives(run.layout)}
    of_six = relatives(PlannedLayout(dp=6))
    assert {"tp=2,dp=3", "cp=2,dp=3"} <= {*of_six} and "tp=4,dp=1" not in of_six
    assert [other.step_seconds for other in ways.values()] == sorted(other.step_seconds for other in ways.values())
    model = model_of("llama3-405b")
    found, state = search(costs_of(model, "h100:8"), 8), 18 * model.parameters / 8
    assert not found.best and state < found.smallest.memory.total < 1.2 * state
    huge = costs_of(model_of("layers=1,width=65536,heads=4,vocab=1000,context=16"), "h100:4")
    least = min(plan_run(huge, layout, 4).memory.total for layout in every_layout(huge, 4))
    assert search(huge, 4).smallest.memory.total == least
    costs = costs_of(model_of("deepseek-v3"), "h100:64")  # its second stage has the last layers without experts
    run = plan_run(costs, PlannedLayout(tp=2, pp=32), 64)
    stages = [memory_of(costs.model, run.layout, 64, costs.numerics, rank).total for rank in range(32)]
    assert run.memory.total == max(stages) > stages[1]
    costs = StepCosts(SMALL, ClusterSpec.parse("h100:8"), "bf16", efficiency=PERFECT)
    best, other = (plan_run(costs, PlannedLayout(dp=8, recompute=mode), 24) for mode in ("none", "full"))
    more, less = other.time.recompute, best.time.dp - other.time.dp  # gradients hide behind the longer backward
    shares = [f"{seconds / best.step_seconds:.1%}" for seconds in (more, less)]
    assert why_slower(other, best) == f"+{shares[0]} recompute, -{shares[1]} dp"


def test_layouts_are_read_and_written_and_fill_the_cluster():
    text = "dp=8,tp=8,sp=1,pp=16,schedule=interleaved,virtual=6,zero=1,recompute=selective,micro_batch=2"
    layout = PlannedLayout.parse(text, 1024)
    assert str(layout) == text and (layout.replicas, layout.shards, layout.stage_count) == (8, 8, 96)
    assert PlannedLayout.parse("tp=8,pp=16", 16_384).dp == 128 and PlannedLayout.parse("cp=4", 12).dp == 3
    for number in (1, 2, 36, 97, 16_384):
        assert divisors(number) == [n for n in range(1, number + 1) if number % n == 0]
