"""Workers of a parameter server on a common clock: who computes, who waits, and from which version."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from minidist.parallel.loosened.arrivals import may_begin, seeded_order
from minidist.show.figures.subplots import subplots
from minidist.show.palette import PAPER, ink_on, of_version


@dataclass(frozen=True)
class Span:
    """A worker's step: from when to when it computes, and from which version of the weights."""

    worker: int
    begin: float
    end: float
    read: int
    applied: int  # to which version


def spans(seconds: Sequence[float], steps: int, staleness: float, seed: int = 0) -> list[Span]:
    """Return every step of a run in a seeded order. With staleness 0 a version belongs to a round of all workers."""
    workers = len(seconds)
    clocks, begins, reads = [0] * workers, [0.0] * workers, [0] * workers
    waiting: set[int] = set()
    found = []
    for number, arrival in enumerate(seeded_order(seconds, steps, staleness, seed)):
        version = number // workers if staleness == 0 else number
        worker = arrival.worker
        found.append(Span(worker, begins[worker], arrival.seconds, reads[worker], version))
        clocks[worker] += 1
        waiting.add(worker)
        for other in sorted(waiting):
            if may_begin(clocks, other, staleness):
                waiting.remove(other)
                begins[other], reads[other] = arrival.seconds, clocks[other] if staleness == 0 else number + 1
    return found


def draw(runs: Mapping[str, Sequence[Span]], until: float):
    """Return a matplotlib Figure: for each run the lanes of its workers; numbers give the staleness of the updates.

    Args:
        runs: title -> its steps.
        until: seconds to show.
    """
    figure, all_axes = subplots(11, 1.55 * len(runs), len(runs), 1, sharex=True)
    for axes, (title, steps) in zip(all_axes, runs.items(), strict=True):
        workers = max(step.worker for step in steps) + 1
        for worker in range(workers):
            axes.barh(worker, until, height=0.7, color=PAPER["faint"], alpha=0.35)
        shown = [step for step in steps if step.begin < until]
        newest = max(step.read for step in shown)
        for step in shown:
            end, colour = min(step.end, until), of_version(step.read, newest)
            axes.barh(
                step.worker, end - step.begin, left=step.begin, height=0.7, color=colour, edgecolor="white",
                linewidth=0.8,
            )  # fmt: skip
            if step.end < until:
                axes.text(
                    step.end - 0.06, step.worker, step.applied - step.read, color=ink_on(colour), fontsize=8.5,
                    ha="right", va="center", weight="bold",
                )  # fmt: skip
        taken = sum(step.end <= until for step in steps)
        axes.set_title(f"{title}: {taken} gradients in {until:g} seconds", loc="left", fontsize=10)
        axes.set_yticks(range(workers), [f"worker {worker}" for worker in range(workers)])
        axes.invert_yaxis()
        axes.set_xlim(0, until)
        axes.tick_params(labelsize=8.5)
    all_axes[-1].set_xlabel("seconds", fontsize=9)
    return figure
