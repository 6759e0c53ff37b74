"""What would make a layout fit, or make it quicker: its nearest relatives, one change each."""

from dataclasses import replace

from minidist.nn.recompute import MODES
from minidist.plan.layout import PlannedLayout
from minidist.plan.planned_run import PlannedRun, plan_run
from minidist.plan.time import StepCosts


def relatives(layout: PlannedLayout) -> dict[str, PlannedLayout]:
    """The layouts that differ from this one in one decision, by that decision in words."""
    found: dict[str, dict] = {}
    for mode in MODES[MODES.index(layout.recompute) + 1 :]:
        found[f"recompute={mode}"] = {"recompute": mode}
    for stage in range(layout.zero + 1, 4):
        found[f"zero={stage}"] = {"zero": stage}
    if layout.tp > 1 and not layout.sp:
        found["sp=1"] = {"sp": 1}
    if layout.micro_batch > 1:
        found["micro_batch=1"] = {"micro_batch": 1}
    if layout.attention == "standard":
        found["attention=flash"] = {"attention": "flash"}
    for factor in (2, 4, 8, 16):
        if layout.dp % factor == 0:
            dp = layout.dp // factor
            for axis in ("tp", "pp", "cp"):
                size = getattr(layout, axis) * factor
                found[f"{axis}={size},dp={dp}"] = {axis: size, "dp": dp, "ep": min(layout.ep, dp)}
    relatives = {}
    for name, changes in found.items():
        try:
            relatives[name] = replace(layout, **changes)
        except ValueError:
            continue  # one that no run can have, such as ZeRO over a single rank
    return relatives


def what_would_help(costs: StepCosts, run: PlannedRun, count: int = 4) -> list[tuple[str, PlannedRun]]:
    """Single changes after which the run fits, the quickest first; if none does, those that need the least memory."""
    planned = [
        (name, plan_run(costs, layout, run.batch))
        for name, layout in relatives(run.layout).items()
        if not layout.problem(run.model, run.batch)
    ]
    fitting = sorted((pair for pair in planned if pair[1].fits), key=lambda pair: pair[1].step_seconds)
    smaller = [pair for pair in planned if pair[1].memory.total < run.memory.total]
    return (fitting or sorted(smaller, key=lambda pair: pair[1].memory.total))[:count]


def why_slower(run: PlannedRun, best: PlannedRun) -> str:
    """Which parts of a step take longer than in the best layout, and which less; the largest two of each."""
    step, least = best.step_seconds, vars(best.time)
    change = {name: (seconds - least[name]) / step for name, seconds in vars(run.time).items()}
    more = sorted((name for name in change if change[name] > 0.0005), key=change.get, reverse=True)[:2]
    less = sorted((name for name in change if change[name] < -0.0005), key=change.get)[:1]
    words = [f"{100 * change[name]:+.1f} % {name}" for name in more + less]
    return ", ".join(words) or "as quick; it needs more memory or more settings"
