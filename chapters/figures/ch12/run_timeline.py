"""A run that saves, fails and goes on: what is lost, and what is done again."""

from collections.abc import Mapping
from typing import NamedTuple

from minidist.show.figures.subplots import subplots
from minidist.show.palette import MEANINGS, ink_on, on_paper

COLOURS = {
    "step": MEANINGS["computing"],
    "lost": MEANINGS["lost"],
    "again": MEANINGS["recomputed"],
    "pause": MEANINGS["checkpoint"],
    "restart": on_paper("idle"),
}
WORDS = {
    "step": "a step that counts",
    "lost": "lost",
    "again": "done again",
    "pause": "training stopped for a save",
    "restart": "detection and restart",
}
WRITE, FAILURE = on_paper("result"), on_paper("wrong")


class Saves(NamedTuple):
    """Settings of a run's saves, in units of a step's time.

    Attributes:
        every: steps.
        pause: for how long training stops.
        write: how long the write takes behind training, before it counts; 0 if the save counts as training goes on.
    """

    every: int
    pause: float
    write: float


class Span(NamedTuple):
    """Something that a run does for a while. ``step`` is its step, or the number of steps that a save has."""

    kind: str  # of COLOURS, or "write"
    step: int
    start: float
    stop: float


def history(steps: int, saves: Saves, failure: float, restart: float) -> list[Span]:
    """Return the spans of a run of ``steps`` steps that fails once, at the time ``failure``, within a step."""
    found, now, step, reached = [], 0.0, 0, 0
    committed, written = 0, []  # steps in the last save that counts; (when it counts, steps) of those being written
    while step < steps:
        if now <= failure < now + 1:
            committed = max([count for when, count in written if when <= failure], default=0)
            found.append(Span("lost", step, now, failure))
            found = [span._replace(kind="lost") if span.kind == "step" and span.step >= committed else span
                     for span in found]  # fmt: skip
            found = [span._replace(stop=min(span.stop, failure)) for span in found]  # also a write
            found.append(Span("restart", step, failure, failure + restart))
            now, step, reached, failure = failure + restart, committed, step, -1.0
        found.append(Span("again" if step < reached or (step == reached and reached) else "step", step, now, now + 1))
        now, step = now + 1, step + 1
        if step % saves.every == 0 and step < steps:
            found.append(Span("pause", step, now, now + saves.pause))
            now += saves.pause
            began, ended = (now, now + saves.write) if saves.write else (now - saves.pause, now)
            found.append(Span("write", step, began, ended))
            written.append((ended, step))
    return found


def duration(spans: list[Span]) -> float:
    """Return the time at which the last step is done."""
    return max(span.stop for span in spans if span.kind != "write")


def draw(runs: Mapping[str, list[Span]], failure: float):
    """Return a matplotlib Figure: a panel for each run, title -> what it does."""
    from matplotlib.patches import Rectangle

    last = max(span.stop for spans in runs.values() for span in spans)
    figure, grid = subplots(11, 1.75 * len(runs) + 0.4, len(runs), 1)
    for axes, (title, spans) in zip(grid, runs.items(), strict=True):
        for span in spans:
            row = 1 if span.kind == "write" else 0
            colour = WRITE if row else COLOURS[span.kind]
            axes.add_patch(
                Rectangle((span.start, row), span.stop - span.start, 0.8, facecolor=colour, edgecolor="white")
            )
            middle = (span.start + span.stop) / 2
            if span.kind in ("step", "lost", "again"):
                axes.text(middle, 0.4, span.step, ha="center", va="center", fontsize=8.5, color=ink_on(colour))
            if row and span.stop - span.start > 1.5:
                axes.text(middle, 1.4, f"write {span.step}", ha="center", va="center", fontsize=8.5, color="white")
            if row and span.stop != failure:
                axes.plot(span.stop, 2.0, "v", color=WRITE, markersize=7, clip_on=False)
        axes.axvline(failure, 0, 0.86, color=FAILURE, lw=2.5)
        axes.text(failure + 0.12, 2.05, "a rank dies", color=FAILURE, fontsize=9, ha="left", va="center")
        axes.set_title(f"{title}: done after {duration(spans):g}", fontsize=10, loc="left")
        axes.set_yticks([0.4, 1.4], ["training", "disk"], fontsize=9)
        axes.set(xlim=(0, last), ylim=(-0.1, 2.35), xticks=[])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    handles = [Rectangle((0, 0), 1, 1, color=COLOURS[kind], label=WORDS[kind]) for kind in COLOURS]
    handles.append(Rectangle((0, 0), 1, 1, color=WRITE, label="writing to the disk; ▼: it counts"))
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False, fontsize=8.5)
    return figure
