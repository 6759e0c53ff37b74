"""Compute next to all-gather and reduce-scatter: one rank's last step in several runs, on one time axis.

``timeline`` shows phases, in which a rank that waits for parameters inside its forward pass looks busy. Here compute is
shown operation by operation, so that waiting is a gap.
"""

from collections.abc import Mapping, Sequence

from minidist.analysis.steps import covered_share, last_step
from minidist.show.figures import timeline
from minidist.show.figures.subplots import subplots
from minidist.show.palette import COLLECTIVES
from minidist.trace import Event
from minidist.train.result import Run

COLOURS = {
    "forward": timeline.COLOURS["forward"],
    "backward": timeline.COLOURS["backward"],
    "optimizer": timeline.COLOURS["optimizer"],
    "all-gather": COLLECTIVES["all-gather"],
    "reduce-scatter": COLLECTIVES["reduce-scatter"],
}
COMPUTE = ("forward", "backward", "optimizer")


def kind_of(event: Event) -> str | None:
    """Return which of COLOURS an event is; None if it is neither, or is made of other events."""
    if event.track == "communication":
        names = {"all_gather": "all-gather", "reduce_scatter": "reduce-scatter"}
        return next((kind for name, kind in names.items() if event.name.startswith(name)), None)
    first = event.name.split()[0]
    if event.track != "compute" or first in ("forward", "backward") or first.startswith("BeforeBackward"):
        return None
    if first == "optimizer":
        return first
    return "backward" if first.endswith(".backward") else "forward"


def overlapped(log: Sequence[Event], kind: str) -> float:
    """Return the share, 0 to 1, of the time in a rank's collectives of one kind during which an operation ran."""
    return covered_share(
        [event for event in log if kind_of(event) == kind], [event for event in log if kind_of(event) in COMPUTE]
    )


def hidden_shares(logs: Sequence[list], rank: int = 0) -> list[float]:
    """Return the shares of a rank's last all-gathers and reduce-scatters during which an operation ran."""
    return [overlapped(last_step(logs)[rank], kind) for kind in ("all-gather", "reduce-scatter")]


def milliseconds(run: Run) -> float:
    """Return how long the last step, the one drawn, took on the first rank of a recorded run."""
    (log, *_) = last_step([rank.log for rank in run.ranks])
    return max(event.end for event in log if event.track == "step") / 1e6


def draw(runs: Mapping[str, Sequence[list]], rank: int = 0):
    """Return a matplotlib Figure: for each run (title -> logs), one rank's operations above its collectives."""
    figure, rows = subplots(11, 0.8 + 1.05 * len(runs), len(runs), 1, sharex=True)
    for axes, (title, logs) in zip(rows, runs.items(), strict=True):
        log = last_step(logs)[rank]
        for kind, colour in COLOURS.items():
            places = [(e.start / 1e6, (e.end - e.start) / 1e6) for e in log if kind_of(e) == kind]
            axes.broken_barh(places, (0.02, 0.46) if kind in COMPUTE else (0.52, 0.36), facecolors=colour)
        end = max(event.end for event in log if event.track == "step") / 1e6
        axes.axvline(end, color="#606060", linewidth=1, linestyle="--")
        axes.set_yticks([0.25, 0.7], ["compute", "collectives"])
        axes.set_ylim(0.95, 0)
        axes.set_title(title, loc="left", fontsize=10)
        axes.spines["left"].set_visible(False)
        axes.tick_params(axis="y", length=0)
    rows[-1].set_xlabel("milliseconds")
    rows[-1].set_xlim(0)
    handles = [rows[0].barh(0, 0, color=colour, label=kind) for kind, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure
