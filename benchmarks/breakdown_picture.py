"""Picture of where the time of a step goes (minidist/analysis/breakdown.py)."""

from collections.abc import Mapping, Sequence

from minidist.analysis.breakdown import COMPUTE, seconds_by_kind
from minidist.show.figures.timeline import COLOURS

KINDS = {"compute": COLOURS["backward"], "communication": COLOURS["communication"], "waiting": COLOURS["wait"]}


def seconds(logs: Sequence[list]) -> list[dict[str, float]]:
    """Return each rank's seconds of KINDS in its last step."""
    last = [steps[-1] for steps in seconds_by_kind(logs)]
    return [
        {"compute": sum(times[kind] for kind in COMPUTE)} | {kind: times[kind] for kind in ("communication", "waiting")}
        for times in last
    ]


def draw(runs: Mapping[str, Sequence[Mapping[str, float]]], title: str):
    """Return a matplotlib Figure: a bar for each rank of each run, with a segment for each kind.

    Args:
        runs: name -> the ``seconds`` of the ranks of that run.
    """
    from matplotlib.figure import Figure

    rows = [(f"{name}, rank {r}", one) for name, ranks in runs.items() for r, one in enumerate(ranks)]
    figure = Figure(figsize=(9, 0.8 + 0.34 * len(rows)), layout="constrained")
    axes = figure.subplots()
    for place, (_, one) in enumerate(rows):
        left = 0.0
        for kind, colour in KINDS.items():
            axes.barh(place, 1e3 * one[kind], 0.7, left, color=colour)
            left += 1e3 * one[kind]
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.invert_yaxis()
    axes.set_xlabel("milliseconds of a step")
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    handles = [axes.barh(0, 0, color=colour, label=kind) for kind, colour in KINDS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(KINDS), frameon=False)
    return figure
