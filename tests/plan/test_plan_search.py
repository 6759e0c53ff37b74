"""The search against all layouts, planned one by one; and what is said where nothing fits."""

from itertools import product

import pytest

from minidist.nn.memory.recompute import MODES
from minidist.plan.advice import relatives, what_would_help, why_slower
from minidist.plan.cluster.efficiency import PERFECT
from minidist.plan.cluster.hardware import ClusterSpec
from minidist.plan.layout import PlannedLayout
from minidist.plan.models.library import model_of
from minidist.plan.planned_run import PlannedRun, plan_run
from minidist.plan.search import groups, least_memory, members, search
from minidist.plan.time import StepCosts

SMALL = "layers=6,width=1536,heads=6,vocab=6000,context=768"
CASES = [  # model, cluster, batch
    (SMALL, "h100:8", 24),
    (SMALL, "v100:2x6", 36),
    ("layers=5,width=15360,heads=15,vocab=5000,context=900", "a100:3x5", 30),
    ("layers=40,width=8192,heads=8,vocab=32000,context=2048", "a100:2x8", 16),
    ("mixtral-8x7b", "h100:2x8", 16),
]


def costs_of(model: str, cluster: str) -> StepCosts:
    spec = ClusterSpec.parse(cluster)
    return StepCosts(model_of(model), spec, "bf16" if "bf16" in spec.accelerator.flops else "fp16")


def every_layout(costs: StepCosts, batch: int) -> list[PlannedLayout]:
    """All legal layouts, by trying all values of all keys."""
    world, model = costs.cluster.world_size, costs.model
    sizes = [n for n in range(1, world + 1) if world % n == 0]
    found = []
    for tp, cp, pp in product(sizes, repeat=3):
        if world % (tp * cp * pp):
            continue
        dp = world // (tp * cp * pp)
        experts = [n for n in range(1, dp + 1) if dp % n == 0] if model.moe else [1]
        for sp, ep, zero, recompute, micro_batch in product(
            (0, 1), experts, (0, 1, 2, 3), MODES, range(1, batch // dp + 1)
        ):
            for virtual in range(1, (model.layers + 2) // pp + 1) if pp > 1 else [1]:
                try:
                    layout = PlannedLayout(
                        dp=dp, tp=tp, cp=cp, pp=pp, sp=sp, ep=ep, zero=zero, recompute=recompute,
                        micro_batch=micro_batch, virtual=virtual, attention=costs.efficiency.attention,
                    )  # fmt: skip
                except ValueError:
                    continue
                if not layout.problem(model, batch):
                    found.append(layout)
    return found


def fitting(costs: StepCosts, batch: int) -> list[PlannedRun]:
    """All layouts that fit, the quickest first."""
    runs = [plan_run(costs, layout, batch) for layout in every_layout(costs, batch)]
    return sorted((run for run in runs if run.fits), key=lambda run: run.step_seconds)


@pytest.mark.long
@pytest.mark.parametrize(("model", "cluster", "batch"), CASES, ids=str)
def test_nothing_that_was_skipped_would_have_won(model, cluster, batch):
    """The oracle tries every value of every key: sp=0, uneven stages, and all else that the search skips."""
    costs = costs_of(model, cluster)
    runs = fitting(costs, batch)
    found = search(costs, batch, top=3)
    if not runs:
        assert not found.best and found.smallest is not None
        return
    even = [run for run in runs if _searched(run)]
    assert [run.step_seconds for run in found.best] == pytest.approx(
        [run.step_seconds for run in even[: len(found.best)]],
        rel=1e-3,  # layouts that agree to four digits are alike
    )
    assert found.best[0].step_seconds <= runs[0].step_seconds * 1.001 or not _searched(runs[0])


def _searched(run: PlannedRun) -> bool:
    """Whether the search looks at this layout: sequence parallelism where it is legal, even stages."""
    layout, layers = run.layout, run.model.layers
    even = layout.virtual == 1 or layers % layout.stage_count == 0 or layout.stage_count == layers + 2
    flash = layout.recompute == "selective" and layout.attention == "flash"
    return even and not flash and bool(layout.sp) == (layout.tp > 1)


@pytest.mark.long
@pytest.mark.parametrize(("model", "cluster", "batch"), CASES, ids=str)
def test_the_bounds_are_bounds(model, cluster, batch):
    costs = costs_of(model, cluster)
    checked = 0
    for group, virtual in groups(costs, batch, PlannedLayout(attention=costs.efficiency.attention)):
        seconds, nbytes = costs.least_seconds(group, batch), least_memory(costs, group, batch)
        layouts = members(group, virtual)
        for layout in layouts[:: max(1, len(layouts) // 3)]:
            run = plan_run(costs, layout, batch)
            assert seconds <= run.step_seconds * (1 + 1e-9), layout
            assert nbytes <= run.memory.total * (1 + 1e-9), layout
            checked += 1
    assert checked > 50


def test_sequence_parallelism_is_never_worse():
    """Why the search may skip layouts without it."""
    for case in CASES:
        costs, batch = costs_of(*case[:2]), case[2]
        for group, _ in groups(costs, batch, PlannedLayout(attention=costs.efficiency.attention)):
            if group.sp:
                without = PlannedLayout(**{**vars(group), "sp": 0})
                one, other = (plan_run(costs, layout, batch) for layout in (group, without))
                assert one.step_seconds <= other.step_seconds and one.memory.total <= other.memory.total


@pytest.mark.long
def test_16384_gpus_are_searched_whole():
    """Every layout is either planned or skipped by a bound; few are planned."""
    costs = costs_of("llama3-405b", "h100:16384")
    found = search(costs, 2048)
    assert found.legal > 50_000 and found.planned < found.legal / 5
    assert all(run.fits for run in found.best) and len(found.best) == 5
    steps = [run.step_seconds for run in found.best]
    assert steps == pytest.approx(sorted(steps), rel=1e-3)


def test_a_layout_that_does_not_fit_is_told_what_would_help():
    costs = costs_of("layers=32,width=4096,heads=32,vocab=32000,context=2048", "h100:8")
    run = plan_run(costs, PlannedLayout(dp=8), 64)
    assert not run.fits
    ways = what_would_help(costs, run)
    assert ways and all(other.fits for _, other in ways) and "zero=1" in dict(ways)
    assert [other.step_seconds for _, other in ways] == sorted(other.step_seconds for _, other in ways)
    assert set(dict(ways)) <= set(relatives(run.layout))


def test_where_nothing_fits_the_smallest_is_named():
    found = search(costs_of("llama3-405b", "h100:8"), 8)
    assert not found.best and found.legal > 100
    state = 18 * model_of("llama3-405b").parameters / 8
    assert state < found.smallest.memory.total < 1.2 * state


def test_why_the_second_loses():
    costs = StepCosts(model_of(SMALL), ClusterSpec.parse("h100:8"), "bf16", efficiency=PERFECT)
    best, other = (plan_run(costs, PlannedLayout(dp=8, recompute=mode), 24) for mode in ("none", "full"))
    more, less = other.time.recompute, best.time.dp - other.time.dp  # gradients hide behind the longer backward
    expected = f"+{100 * more / best.step_seconds:.1f} % recompute, -{100 * less / best.step_seconds:.1f} % dp"
    assert why_slower(other, best) == expected
    assert "as quick" in why_slower(best, best)
