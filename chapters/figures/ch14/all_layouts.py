"""Every legal layout of a model on a cluster, as memory against speed."""

from collections.abc import Sequence

from minidist.plan.layout import PlannedLayout, with_attention
from minidist.plan.planned_run import PlannedRun, plan_run
from minidist.plan.search import groups, members
from minidist.plan.time import StepCosts
from minidist.show.figures.subplots import subplot
from minidist.show.palette import PAPER, SERIES


def every_plan(costs: StepCosts, batch: int) -> list[PlannedRun]:
    """Plan all legal layouts with flash attention, at ``batch`` sequences a step."""
    fixed = with_attention(PlannedLayout(), "flash")
    return [plan_run(costs, layout, batch) for group in groups(costs, batch, fixed) for layout in members(*group)]


def draw(runs: Sequence[PlannedRun], best: PlannedRun, limit: float):
    """Draw a dot for each run, a star for the best, and a line at ``limit`` bytes; return a matplotlib Figure."""
    figure, axes = subplot(9, 3.2)
    for recompute, colour in (("full", SERIES[1]), ("none", SERIES[0])):
        some = [
            (one.memory.total / 1e9, one.tokens_per_second / 1e3) for one in runs if one.layout.recompute == recompute
        ]
        axes.scatter(*zip(*some, strict=True), s=4, color=colour, alpha=0.25, label=f"recompute={recompute}")
    axes.plot(best.memory.total / 1e9, best.tokens_per_second / 1e3, "*", ms=14, color="black", zorder=3)
    axes.axvline(limit / 1e9, color=PAPER["wrong"])
    axes.text(limit / 1e9, 1.01, f"{limit / 1e9:.0f} GB", ha="center", fontsize=9, transform=axes.get_xaxis_transform())
    axes.set(xscale="log", ylim=(0, None))
    for handle in axes.legend(frameon=False, fontsize=8, markerscale=3, loc="upper left").legend_handles:
        handle.set_alpha(1)
    axes.set_xlabel("GB on the fullest GPU", fontsize=9)
    axes.set_ylabel("thousand tokens/s", fontsize=9)
    return figure
