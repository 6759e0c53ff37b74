"""Search for the best layout of a model on a cluster, over all legal layouts.

Layouts differ in dp, tp, sp, cp, pp, virtual, ep, zero, recompute and micro_batch. The layouts of a group differ in
zero and virtual alone. Two lower bounds of a group are quick to compute: one for the seconds of a step (no rank is ever
idle, gradients cost nothing) and one for the bytes of a rank (everything is sharded). Groups that cannot fit are
skipped. The others are planned in the order of their bound in seconds, until it passes the worst of the best layouts
found. So no skipped layout can win (branch and bound; Land and Doig, 1960).

Without sequence parallelism a layout is never better than with it: it sends as much, and holds and computes more. So
sp=0 is skipped where sp=1 is legal.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import inf
from operator import itemgetter
from time import perf_counter

from minidist.nn.config import divisors
from minidist.nn.recompute import MODES
from minidist.plan.layout import PlannedLayout, with_attention
from minidist.plan.memory import RESERVED, memory_of, saved_by_block, saved_scores
from minidist.plan.planned_run import PlannedRun, plan_run
from minidist.plan.time import StepCosts

WAYS = 4  # at most this many suggestions for making a run fit


@dataclass(frozen=True)
class Found:
    """Result of a search.

    Attributes:
        best: quickest layouts that fit, the quickest first.
        legal: number of legal layouts. planned: number of those not skipped. seconds: time of the search.
        smallest: layout that needs the least memory, if none fits.
    """

    best: list[PlannedRun]
    legal: int
    planned: int
    seconds: float
    smallest: PlannedRun | None = None


def search(costs: StepCosts, batch: int, top: int = 5, fixed: PlannedLayout | None = None) -> Found:
    """Find the ``top`` quickest layouts that fit.

    Args:
        batch: sequences in a step.
        fixed: layout whose cp_kind and attention all layouts share; None for the defaults.
    """
    began = perf_counter()
    fixed = with_attention(fixed or PlannedLayout(), costs.efficiency.attention)
    legal, open_groups, closed = 0, [], []
    for group, virtual in groups(costs, batch, fixed):
        legal += len(stages_of_zero(group)) * len(virtual)
        least = least_memory(costs, group, batch)
        if least <= costs.cluster.accelerator.memory:
            open_groups.append((costs.least_seconds(group, batch), len(open_groups), group, virtual))
        else:
            closed.append((least, len(closed), group, virtual))
    best: list[PlannedRun] = []
    planned, closest = 0, (inf, fixed)
    for bound, _, group, virtual in sorted(open_groups, key=lambda opened: opened[:2]):
        if len(best) == top and bound > 1.001 * best[-1].step_seconds:  # four digits
            break
        for layout in members(group, virtual):
            planned += 1
            memory = memory_of(costs.model, layout, batch, costs.numerics)
            if memory.total > costs.cluster.accelerator.memory:
                closest = min(closest, (memory.total, layout), key=itemgetter(0))
                continue
            best = sorted([*best, plan_run(costs, layout, batch)], key=_order)[:top]
    for least, _, group, virtual in [] if best else sorted(closed, key=lambda group: group[:2]):
        if least > closest[0]:
            break
        for layout in members(group, virtual):
            total = memory_of(costs.model, layout, batch, costs.numerics).total
            closest = min(closest, (total, layout), key=itemgetter(0))
    smallest = plan_run(costs, closest[1], batch) if legal and not best else None
    return Found(best, legal, planned, perf_counter() - began, smallest)


def _order(run: PlannedRun) -> tuple:
    """Sort key: the quickest first; of those that agree to four digits the simplest, then the smallest."""
    return float(f"{run.step_seconds:.4g}"), str(run.layout).count(","), run.memory.total


def groups(costs: StepCosts, batch: int, fixed: PlannedLayout) -> Iterator[tuple[PlannedLayout, list[int]]]:
    """Yield each group of legal layouts, as one layout and all values of ``virtual``, without needless sp=0."""
    model, world = costs.model, costs.cluster.world_size
    for tp in divisors(model.heads):
        for cp in divisors(world // tp) if world % tp == 0 else ():
            for pp in divisors(world // (tp * cp)):
                dp = world // (tp * cp * pp)
                if pp > model.layers + 2 or batch % dp:
                    continue
                shape = replace(fixed, tp=tp, cp=cp, pp=pp, dp=dp, sp=0)
                for micro_batch in divisors(batch // dp):
                    sized = replace(shape, micro_batch=micro_batch)
                    if tp > 1 and not (parallel := replace(sized, sp=1)).problem(model, batch):
                        sized = parallel
                    elif sized.problem(model, batch):
                        continue
                    virtual = _virtual(model.layers, pp, batch // (dp * micro_batch))
                    for ep in [n for n in divisors(dp) if model.moe.experts % n == 0] if model.moe else [1]:
                        for recompute in MODES:
                            if recompute == "selective" and fixed.attention == "flash":
                                continue  # flash attention stores no scores that could be recomputed
                            group = replace(sized, ep=ep, recompute=recompute)
                            yield group, virtual


def _virtual(layers: int, pp: int, micro_batches: int) -> list[int]:
    """Return the numbers of stages that a rank can have."""
    if pp == 1:
        return [1]
    most = (layers + 2) // pp if micro_batches % pp == 0 else 1
    return [v for v in range(1, most + 1) if v == 1 or layers % (pp * v) == 0 or pp * v == layers + 2]


def stages_of_zero(group: PlannedLayout) -> tuple[int, ...]:
    """Return the ZeRO stages that are legal for a group."""
    return (0, 1, 2, 3) if group.replicas > 1 else (0,)


def members(group: PlannedLayout, virtual: list[int]) -> list[PlannedLayout]:
    """Return every layout of a group."""
    return [replace(group, zero=zero, virtual=v) for zero in stages_of_zero(group) for v in virtual]


def least_memory(costs: StepCosts, layout: PlannedLayout, batch: int) -> float:
    """Lower bound of the bytes of rank 0 in a group: parameters, gradients and optimizer sharded over all ranks."""
    model, numerics = costs.model, costs.numerics
    state = numerics.parameter + numerics.gradient + numerics.optimizer
    blocks = model.parameters - model.embeddings
    in_flight = min(layout.micro_batches(batch), layout.pp)
    kept = numerics.activation * layout.micro_batch * model.context / layout.cp * model.width
    kept /= layout.tp if layout.sp else 1
    if layout.recompute != "full":
        sparse = model.moe is not None and model.sparse_layers == model.layers
        kept = saved_by_block(model, layout, numerics, sparse)
        if model.moe and not sparse:
            kept = min(kept, saved_by_block(model, layout, numerics, True))
        if layout.recompute == "none" or layout.attention == "flash":
            kept += saved_scores(model, layout, numerics)
    layers = model.layers // layout.pp  # the rank with the most layers has at least this many
    held = in_flight * max(0, layers - 1) * kept
    return state * blocks / layout.world_size + held + RESERVED


def relatives(layout: PlannedLayout) -> dict[str, PlannedLayout]:
    """Return the layouts that differ from this one in one decision, by that decision in words."""
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
            continue  # an invalid layout, such as ZeRO over a single rank
    return relatives


def what_would_help(costs: StepCosts, run: PlannedRun) -> list[tuple[str, PlannedRun]]:
    """Return single changes that make the run fit, the quickest first; if none does, those with the least memory.

    Each is a change in words and the changed run; there are at most WAYS.
    """
    planned = [
        (name, plan_run(costs, layout, run.batch))
        for name, layout in relatives(run.layout).items()
        if not layout.problem(run.model, run.batch)
    ]
    fitting = sorted((pair for pair in planned if pair[1].fits), key=lambda pair: pair[1].step_seconds)
    smaller = [pair for pair in planned if pair[1].memory.total < run.memory.total]
    return (fitting or sorted(smaller, key=lambda pair: pair[1].memory.total))[:WAYS]


def why_slower(run: PlannedRun, best: PlannedRun) -> str:
    """Return, in words, up to two parts of a step that take longer than in the best layout, and one that takes less."""
    step, least = best.step_seconds, vars(best.time)
    change = {name: (seconds - least[name]) / step for name, seconds in vars(run.time).items()}
    more = sorted((name for name in change if change[name] > 0.0005), key=change.__getitem__, reverse=True)[:2]
    less = sorted((name for name in change if change[name] < -0.0005), key=change.__getitem__)[:1]
    words = [f"{change[name]:+.1%} {name}" for name in more + less]
    return ", ".join(words) or "equally fast; it needs more memory or more settings"
