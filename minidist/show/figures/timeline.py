"""A timeline of a run: for each rank a lane of compute and a lane of communication."""

from collections.abc import Sequence
from pathlib import Path

from minidist.analysis.steps import kind_of
from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, on_paper
from minidist.trace import Event

COLOURS = {  # of Okabe and Ito
    "forward": MEANINGS["forward"],
    "backward": MEANINGS["backward"],
    "optimizer": MEANINGS["optimizer"],
    "communication": MEANINGS["communication"],
    "wait": on_paper("idle"),
}
MICROSECONDS_BELOW = 2e6  # ns: shorter timelines are labelled in microseconds


def draw(logs: Sequence[list], title: str):
    """Return a matplotlib Figure of the logs, one log for each rank."""
    events = [[entry for entry in log if isinstance(entry, Event)] for log in logs]
    zero = min(event.start for log in events for event in log)
    length = max(event.end for log in events for event in log) - zero
    unit, name = (1e6, "milliseconds") if length > MICROSECONDS_BELOW else (1e3, "microseconds")
    figure, axes = subplot(11, 0.9 + 0.85 * len(logs))
    shown: dict[str, str] = {}
    for step in (event for event in events[0] if event.track == "step"):
        axes.axvline((step.start - zero) / unit, color="#A0A0A0", linewidth=0.8, linestyle=":")
        axes.text((step.start - zero) / unit, -0.08, f" {step.name}", fontsize=8, color="#606060")
    for rank, log in enumerate(events):
        for kind, colour in COLOURS.items():
            spans = [
                ((event.start - zero) / unit, (event.end - event.start) / unit)
                for event in log
                if kind_of(event) == kind
            ]
            lane, height = (rank + 0.42, 0.3) if kind == "communication" else (rank, 0.4)
            axes.broken_barh(spans, (lane, height), facecolors=colour)
            if spans:
                shown[kind] = colour
    axes.set_yticks([rank + 0.36 for rank in range(len(logs))], [f"rank {rank}" for rank in range(len(logs))])
    axes.set_ylim(len(logs) - 0.1, -0.3)
    axes.set_xlabel(name)
    axes.set_title(title, loc="left", fontsize=11)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    handles = [axes.barh(0, 0, color=colour, label=kind) for kind, colour in shown.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
    return figure


def save(path: str | Path, logs: Sequence[list], title: str) -> None:
    draw(logs, title).savefig(path, dpi=150)
