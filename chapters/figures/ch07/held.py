"""Figure of how many micro-batches are in flight on each rank of a pipeline, over the time of a step."""

from collections.abc import Mapping, Sequence

from minidist.parallel.tools.schedule_check import Slot
from minidist.show.figures.subplots import subplots
from minidist.show.palette import of_rank


def over_time(slots: Sequence[Slot]) -> list[tuple[float, int]]:
    """Return one rank's (moment, micro-batches in flight from then on), in order of time.

    A micro-batch is in flight, its activations in memory, from the start of its forward to the end of its backward; if
    backward is split, to the end of W.
    """
    changes: dict[float, int] = {0.0: 0}
    for slot in slots:
        if slot.action.kind == "F":
            changes[slot.start] = changes.get(slot.start, 0) + 1
        elif slot.action.kind in "BW":
            changes[slot.end] = changes.get(slot.end, 0) - 1
    count, found = 0, []
    for moment in sorted(changes):
        count += changes[moment]
        found.append((moment, count))
    return found


def draw(pipelines: Mapping[str, Sequence[Sequence[Slot]]]):
    """Return a matplotlib Figure: a panel for each pipeline with a line for each rank, all on one scale.

    Args:
        pipelines: title -> for each rank its actions and their times.
    """
    figure, panels = subplots(11, 2.7, 1, len(pipelines), sharex=True, sharey=True)
    ranks = max(len(pipeline) for pipeline in pipelines.values())
    for axes, (title, pipeline) in zip(panels, pipelines.items(), strict=True):
        for rank, slots in enumerate(pipeline):
            moments, counts = zip(*over_time(slots), strict=True)
            shift = 0.05 * (rank - (ranks - 1) / 2)  # so that lines of equal height do not cover each other
            axes.step(moments, [count + shift for count in counts], where="post", color=of_rank(rank), linewidth=1.8)
        axes.set_title(title, loc="left", fontsize=10)
        axes.set_xlabel("slots", fontsize=9)
        axes.grid(axis="y", color="#E4E4E4", linewidth=0.8)
        axes.set_axisbelow(True)
    panels[0].set_ylabel("micro-batches in flight", fontsize=9)
    panels[0].set_ylim(bottom=0)
    panels[0].yaxis.get_major_locator().set_params(integer=True)
    handles = [panels[0].plot([], [], color=of_rank(rank), label=f"rank {rank}")[0] for rank in range(ranks)]
    figure.legend(handles=handles, loc="outside lower center", ncols=ranks, frameon=False, fontsize=9)
    return figure
