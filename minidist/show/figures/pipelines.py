"""Pipelines in their usual form: ranks down, time across, and in each cell the number of the micro-batch.

The same picture is drawn of a schedule, in slots (``schedule_check.timeline``), and of a real run, in seconds
(``analysis.steps.slots_of``).
"""

from collections.abc import Mapping, Sequence

from minidist.parallel.tools.schedule_check import Slot, bubble
from minidist.parallel.tools.schedules import Action
from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS, ink_on

COLOURS = {
    "F": MEANINGS["forward"],
    "B": MEANINGS["backward"],
    "I": MEANINGS["backward of inputs"],
    "W": MEANINGS["backward of weights"],
}
NAMES = {"F": "forward", "B": "backward", "I": "backward, inputs", "W": "backward, weights"}
MILLISECONDS_FROM = 2e-3  # seconds: shorter pipelines are labelled in microseconds


def draw(pipelines: Mapping[str, Sequence[Sequence[Slot]]], unit: str = "slots", ranks: Sequence[int] | None = None):
    """Return a matplotlib Figure: a panel for each pipeline, with the bubble in its title.

    Args:
        pipelines: title -> for each rank its actions and their times.
        unit: unit of the times. "seconds" below 1 are labelled in milliseconds or microseconds.
        ranks: numbers of the ranks, from the first stage on; 0, 1, 2, ... by default.
    """
    from matplotlib.patches import Patch

    rows = [len(pipeline) for pipeline in pipelines.values()]
    figure, panels = subplots(
        11,
        sum(0.34 * count + 0.75 for count in rows) + 0.3,
        len(rows),
        1,
        height_ratios=[count + 0.6 for count in rows],
    )
    longest = max(slot.end for pipeline in pipelines.values() for rank in pipeline for slot in rank)
    kinds = {slot.action.kind for pipeline in pipelines.values() for rank in pipeline for slot in rank}
    for axes, (title, pipeline) in zip(panels, pipelines.items(), strict=True):
        for place, rank in enumerate(pipeline):
            for slot in rank:
                _cell(axes, place, slot, len(pipeline), longest)
        axes.set_title(f"{title}: bubble {bubble(pipeline):.1%}", loc="left", fontsize=10)
        numbers = range(len(pipeline)) if ranks is None else ranks
        axes.set_yticks(range(len(pipeline)), [f"rank {number}" for number in numbers], fontsize=8)
        axes.set_ylim(len(pipeline) - 0.5, -0.5)
        axes.set_xlim(0, longest * 1.001)
        axes.tick_params(length=0)
        axes.spines["left"].set_visible(False)
        if axes is not panels[-1]:
            axes.set_xticks([])
    if unit == "seconds" and longest < 1:
        factor, unit = (1e3, "milliseconds") if longest >= MILLISECONDS_FROM else (1e6, "microseconds")
        panels[-1].xaxis.set_major_formatter(lambda value, _: f"{value * factor:.10g}")
    elif unit != "seconds":
        panels[-1].locator_params(axis="x", integer=True)
    panels[-1].set_xlabel(unit, fontsize=9)
    handles = [Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in "FBIW" if kind in kinds]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=9)
    return figure


def colour_of(action: Action, ranks: int) -> str:
    """The colour of an action's kind. Forwards of a rank's later stages are paler and backwards darker, so that the two
    kinds stay apart."""
    share = 1 / (1 + 0.55 * (action.stage // ranks))
    ground = 255 if action.kind == "F" else 0
    parts = (int(COLOURS[action.kind][i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(ground + share * (part - ground)):02X}" for part in parts)


def _cell(axes, place: int, slot: Slot, ranks: int, longest: float) -> None:
    """Draw the box of an action."""
    width = slot.end - slot.start
    colour = colour_of(slot.action, ranks)
    axes.barh(place, width, 0.86, slot.start, color=colour, edgecolor="white", linewidth=0.6)
    if width > 0.012 * longest:
        number = str(slot.action.micro_batch)
        axes.text(slot.start + width / 2, place, number, ha="center", va="center", fontsize=8, color=ink_on(colour))
