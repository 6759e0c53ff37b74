"""Figure of when backward completes each gradient, and so when each bucket of gradients can be sent."""

import time
from collections.abc import Sequence

from minidist.analysis.steps import departures
from minidist.show.figures.subplots import subplots
from minidist.show.palette import SERIES

COLOURS = tuple(SERIES[number] for number in (0, 5, 2, 3, 4, 1, 6))


def completion_times(model, tokens, targets) -> tuple[list[str], list[float], float]:
    """Run backward, and record when each parameter's gradient is complete.

    Returns:
        names of the parameters, in the order of the model; when the gradient of each was complete, and when backward
        ended, in ms of backward.
    """
    done: dict[str, float] = {}
    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(lambda leaf: done.update({leaf.name: time.perf_counter()}))
    for _ in range(2):  # the first pass is a warm-up
        loss = model(tokens, targets)
        start = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        model.zero_grad()
    names = [parameter.name for parameter in model.parameters()]
    return names, [1000 * (done[name] - start) for name in names], 1000 * (end - start)


def draw(names: Sequence[str], completed: Sequence[float], panels: dict[str, Sequence[Sequence[int]]], end: float):
    """Return a matplotlib Figure with a panel for each way to fill buckets.

    A dot is the moment at which a parameter's gradient is complete, in the colour of its bucket. A triangle below is
    the moment at which the bucket is sent; the bar to its right is the time in which its message can be hidden.

    Args:
        names: names of the parameters, in the order of the model.
        completed: when the gradient of each was complete, in ms of backward.
        panels: title -> buckets, in the form that ``departures`` takes.
        end: when backward ended.
    """
    most = max(map(len, panels.values()))
    figure, grid = subplots(11, 1.4 + 0.155 * len(names), 1, len(panels), sharey=True)
    for axes, (title, buckets) in zip(grid, panels.items(), strict=True):
        sent = departures(completed, buckets)
        below = len(names) + 1.5
        for number, bucket in enumerate(sent):
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
    first = figure.axes[0]
    rows = [*range(len(names)), *(len(names) + 1.5 + number for number in range(most))]
    first.set_yticks(rows, [*names, *(f"bucket {number + 1}" for number in range(most))], fontsize=8)
    first.tick_params(axis="y", length=0)
    return figure
