"""When backward completes each gradient, and so when each bucket of gradients can leave."""

from collections.abc import Sequence
from dataclasses import dataclass

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")  # Okabe and Ito


@dataclass(frozen=True)
class Leaving:
    """One bucket: which parameters it holds, when it is full and when it is sent, in the times' unit."""

    parameters: tuple[int, ...]
    full: float
    sent: float


def departures(completed: Sequence[float], buckets: Sequence[Sequence[int]]) -> list[Leaving]:
    """When buckets leave that are sent in their order, each as soon as it is full.

    Args:
        completed: for each parameter, when its gradient was complete.
        buckets: for each bucket, in the order of sending, the numbers of its parameters.
    """
    leaving: list[Leaving] = []
    for bucket in buckets:
        full = max(completed[number] for number in bucket)
        sent = max(full, leaving[-1].sent) if leaving else full
        leaving.append(Leaving(tuple(bucket), full, sent))
    return leaving


def draw(names: Sequence[str], completed: Sequence[float], panels: dict[str, Sequence[Sequence[int]]], end: float):
    """A Figure with a panel for each way to fill buckets.

    A dot is the moment when a parameter's gradient is complete, coloured by its bucket; a triangle below, the moment
    when that bucket leaves. The bar to the right of a triangle is the time in which its message can hide.

    Args:
        names: of the parameters, in the order of the model.
        completed: when each one's gradient was complete, in ms of backward.
        panels: title -> buckets, as ``departures`` takes them.
        end: when backward ended.
    """
    from matplotlib.figure import Figure

    most = max(map(len, panels.values()))
    figure = Figure(figsize=(11, 1.4 + 0.155 * len(names)), layout="constrained")
    for axes, (title, buckets) in zip(
        figure.subplots(1, len(panels), sharey=True, squeeze=False)[0], panels.items(), strict=True
    ):
        leaving = departures(completed, buckets)
        below = len(names) + 1.5
        for number, bucket in enumerate(leaving):
            colour = COLOURS[number % len(COLOURS)]
            times = [completed[parameter] for parameter in bucket.parameters]
            axes.hlines(bucket.parameters, 0, times, color=colour, linewidth=0.6, alpha=0.5)
            axes.scatter(times, bucket.parameters, color=colour, s=16, zorder=3)
            axes.plot([bucket.sent, end], [below + number] * 2, color=colour, linewidth=4, alpha=0.35)
            axes.scatter([bucket.sent], [below + number], color=colour, marker=">", s=45, zorder=3)
        axes.axvline(end, color="#606060", linewidth=1, linestyle="--")
        axes.set_title(title, loc="left", fontsize=11)
        axes.set_xlabel("milliseconds of backward")
        axes.set_xlim(0, 1.04 * end)
        axes.set_ylim(below + most - 0.3, -1)
        axes.spines[["top", "right"]].set_visible(False)
    first = figure.axes[0]
    rows = [*range(len(names)), *(len(names) + 1.5 + number for number in range(most))]
    first.set_yticks(rows, [*names, *(f"bucket {number + 1}" for number in range(most))], fontsize=7)
    first.tick_params(axis="y", length=0)
    return figure
