"""The last step of several runs, one above the other on one axis of time; and how much communication compute hides.

``timeline`` draws one run from beginning to end. Here runs are compared: each starts at 0, and a longer bar is longer.
"""

from collections.abc import Mapping, Sequence

from minidist.show.timeline import COLOURS, kind_of
from minidist.trace import Event


def last_step(logs: Sequence[list]) -> list[list[Event]]:
    """Of each rank's log the spans that began in its last step, with times in ns from the first rank's start.

    Raises:
        ValueError: if a log holds no step.
    """
    steps = [[entry for entry in log if isinstance(entry, Event) and entry.track == "step"] for log in logs]
    if not all(steps):
        raise ValueError("a log holds no span of track 'step': was the run traced?")
    starts = [found[-1].start for found in steps]
    zero = min(starts)
    return [
        [
            Event(entry.name, entry.track, entry.start - zero, entry.end - zero, entry.details)
            for entry in log
            if isinstance(entry, Event) and entry.start >= start
        ]
        for log, start in zip(logs, starts, strict=True)
    ]


def traced_step(logs: Sequence[list]) -> list[list[Event]]:
    """As ``last_step``, without what a rank did after it, such as comparing its weights with other ranks'."""
    steps = last_step(logs)
    ends = [next(event.end for event in log if event.track == "step") for log in steps]
    return [[event for event in log if event.start < end] for log, end in zip(steps, ends, strict=True)]


def length(step: Sequence[Sequence[Event]]) -> int:
    """How long a traced step took, in ns, until its last rank ended it."""
    return max(event.end for log in step for event in log if event.track == "step")


def hidden_share(log: Sequence[Event]) -> float:
    """Of the time that one rank's collectives took, the part that lay under its forward and backward: 0 to 1.

    0 where there was no communication.
    """
    compute = _merged([event for event in log if kind_of(event) in ("forward", "backward")])
    communication = _merged([event for event in log if kind_of(event) == "communication"])
    total = sum(end - start for start, end in communication)
    hidden = sum(
        max(0, min(end, compute_end) - max(start, compute_start))
        for start, end in communication
        for compute_start, compute_end in compute
    )
    return hidden / total if total else 0.0


def _merged(events: Sequence[Event]) -> list[tuple[int, int]]:
    """The times covered by any of the events, as intervals that do not overlap."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((event.start, event.end) for event in events):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def draw(runs: Mapping[str, Sequence[list]]):
    """A Figure of the last step of each run: title -> its logs, one for each rank.

    Each rank has a lane of compute and, below it, a thin lane of communication. A dashed line ends the step.
    """
    from matplotlib.figure import Figure

    panels = {title: last_step(logs) for title, logs in runs.items()}
    ranks = [len(logs) for logs in panels.values()]
    figure = Figure(figsize=(11, 0.9 + 0.55 * sum(ranks) + 0.35 * len(ranks)), layout="constrained")
    shown: dict[str, str] = {}
    rows = figure.subplots(len(panels), 1, sharex=True, squeeze=False, gridspec_kw={"height_ratios": ranks})[:, 0]
    for axes, (title, logs) in zip(rows, panels.items(), strict=True):
        for rank, log in enumerate(logs):
            for kind, colour in COLOURS.items():
                spans = [(e.start / 1e6, (e.end - e.start) / 1e6) for e in log if kind_of(e) == kind]
                lane, height = (rank + 0.42, 0.3) if kind == "communication" else (rank, 0.4)
                axes.broken_barh(spans, (lane, height), facecolors=colour, edgecolor="white", linewidth=0.3)
                if spans:
                    shown[kind] = colour
        end = max(event.end for log in logs for event in log if event.track == "step") / 1e6
        axes.axvline(end, color="#606060", linewidth=1, linestyle="--")
        axes.text(end, -0.12, f" {end:.0f} ms", fontsize=9, color="#606060", ha="left", va="top")
        axes.set_yticks([rank + 0.36 for rank in range(len(logs))], [f"rank {rank}" for rank in range(len(logs))])
        axes.set_ylim(len(logs) - 0.1, -0.2)
        axes.set_title(title, loc="left", fontsize=11)
        axes.spines[["top", "right", "left"]].set_visible(False)
        axes.tick_params(axis="y", length=0)
    rows[-1].set_xlabel("milliseconds")
    rows[-1].set_xlim(0, 1.07 * rows[-1].get_xlim()[1])
    handles = [rows[0].barh(0, 0, color=colour, label=kind) for kind, colour in shown.items()]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(shown), frameon=False)
    return figure
