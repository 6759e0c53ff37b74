"""How many micro-batches' activations each rank of a pipeline holds, over the time of a step."""

from collections.abc import Mapping, Sequence

from minidist.parallel.tools.schedule_check import Slot
from minidist.show.palette import of_rank


def over_time(slots: Sequence[Slot]) -> list[tuple[float, int]]:
    """Of one rank: from each moment on, how many it holds.

    From the start of a forward until the end of the backward: with halves, until the end of W.
    """
    changes: dict[float, int] = {0.0: 0}
    for slot in slots:
        if slot.action.kind == "F":
            changes[slot.start] = changes.get(slot.start, 0) + 1
        elif slot.action.kind in "BW":
            changes[slot.end] = changes.get(slot.end, 0) - 1
    held, found = 0, []
    for moment in sorted(changes):
        held += changes[moment]
        found.append((moment, held))
    return found


def draw(pipelines: Mapping[str, Sequence[Sequence[Slot]]]):
    """A matplotlib Figure: a panel for each pipeline, in it a line for each rank, all to one scale.

    Args:
        pipelines: by title, for each rank its actions and their times.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 2.7), layout="constrained")
    panels = figure.subplots(1, len(pipelines), sharex=True, sharey=True, squeeze=False)[0]
    ranks = max(len(pipeline) for pipeline in pipelines.values())
    for axes, (title, pipeline) in zip(panels, pipelines.items(), strict=True):
        for rank, slots in enumerate(pipeline):
            moments, held = zip(*over_time(slots), strict=True)
            shift = 0.05 * (rank - (ranks - 1) / 2)  # so that lines of one height lie beside each other
            axes.step(moments, [count + shift for count in held], where="post", color=of_rank(rank), linewidth=1.8)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("slots", fontsize=9)
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("micro-batches held", fontsize=9)
    panels[0].set_ylim(bottom=0)
    panels[0].yaxis.get_major_locator().set_params(integer=True)
    handles = [panels[0].plot([], [], color=of_rank(rank), label=f"rank {rank}")[0] for rank in range(ranks)]
    figure.legend(handles=handles, loc="outside lower center", ncols=ranks, frameon=False, fontsize=9)
    return figure
