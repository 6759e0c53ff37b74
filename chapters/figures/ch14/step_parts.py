"""Figure of where the seconds of planned steps go: one bar for each layout."""

from collections.abc import Mapping
from dataclasses import asdict

from minidist.plan.planned_run import PlannedRun
from minidist.show.figures.subplots import subplot
from minidist.show.palette import AXES, MEANINGS, PAPER

COLOURS = {
    "products": MEANINGS["computing"],
    "attention": MEANINGS["forward"],
    "elementwise": MEANINGS["queries"],
    "recompute": MEANINGS["recomputed"],
    "optimizer": MEANINGS["optimizer"],
    "waiting for tp": AXES["tp"],
    "waiting for cp": MEANINGS["keys"],
    "waiting for pp": AXES["pp"],
    "waiting for dp": AXES["dp"],
    "bubble": PAPER["faint"],
}


def parts(run: PlannedRun) -> dict[str, float]:
    """Return the seconds of each kind that is drawn."""
    seconds = asdict(run.time)
    return {kind: seconds[kind.removeprefix("waiting for ")] for kind in COLOURS}


def draw(runs: Mapping[str, PlannedRun]):
    """Return a matplotlib Figure: a horizontal bar for each run, the first on top, its seconds and its MFU."""
    from matplotlib.patches import Rectangle

    figure, axes = subplot(11, 0.5 * len(runs) + 1.7)
    longest = max(run.step_seconds for run in runs.values())
    for row, run in enumerate(runs.values()):
        level = 0.0
        for kind, seconds in parts(run).items():
            axes.barh(row, seconds, left=level, height=0.62, color=COLOURS[kind])
            level += seconds
        axes.text(level + 0.01 * longest, row, f"{run.step_seconds:.1f} s, MFU {run.mfu:.0%}", va="center", fontsize=9)
    axes.set_yticks(range(len(runs)), list(runs), fontsize=9)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.2 * longest), xlabel="seconds of a step")
    used = [kind for kind in COLOURS if any(parts(run)[kind] > 0.002 * longest for run in runs.values())]
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[kind], label=kind) for kind in used]
    figure.legend(handles=handles, loc="outside upper center", ncols=5, frameon=False, fontsize=9)
    return figure
