"""Compute against all-gather and reduce-scatter: one rank's last step in several runs, on one axis of time.

``timeline`` shows phases, and a rank that waits for parameters inside its forward pass looks busy there. Here compute
is made of single operations, so that a gap is a gap.
"""

from collections.abc import Mapping, Sequence

from minidist.show import timeline
from minidist.show.overlap import last_step
from minidist.trace import Event

COLOURS = {
    "forward": timeline.COLOURS["forward"],
    "backward": timeline.COLOURS["backward"],
    "optimizer": timeline.COLOURS["optimizer"],
    "all-gather": "#E69F00",
    "reduce-scatter": "#D55E00",
}
COMPUTE = ("forward", "backward", "optimizer")


def kind_of(event: Event) -> str | None:
    """Which colour a span has; None for one that is made of others, or is neither."""
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
    """Of the time that a rank's collectives of a kind took, the part during which an operation ran: 0 to 1."""
    computing = [(event.start, event.end) for event in log if kind_of(event) in COMPUTE]
    moving = [(event.start, event.end) for event in log if kind_of(event) == kind]
    under = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in moving for b in computing)
    return under / max(1, sum(end - start for start, end in moving))


def draw(runs: Mapping[str, Sequence[list]], rank: int = 0):
    """A matplotlib Figure: for each run, by its title, the operations of a rank above and its collectives below."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 0.8 + 1.05 * len(runs)), layout="constrained")
    rows = figure.subplots(len(runs), 1, sharex=True, squeeze=False)[:, 0]
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
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    rows[-1].set_xlabel("milliseconds")
    rows[-1].set_xlim(0)
    handles = [rows[0].barh(0, 0, color=colour, label=kind) for kind, colour in COLOURS.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(handles), frameon=False)
    return figure
