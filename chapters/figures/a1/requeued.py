"""A run that is longer than a job may be: what each job adds, and what its time limit takes away."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from minidist.show.figures.subplots import subplot
from minidist.show.palette import MEANINGS, PAPER

KEPT, LOST, STARTUP = MEANINGS["computing"], MEANINGS["lost"], PAPER["faint"]


class Life(NamedTuple):
    """One job of the run.

    Attributes:
        begin, end: minutes since the first one began, without the time in the queue.
        first: the step it begins with. done: steps it takes. kept: how many of them a checkpoint has saved in the end.
    """

    begin: float
    end: float
    first: int
    done: int
    kept: int


def lives(steps: int, limit: float, startup: float, save_every: int, on_signal: bool = False) -> list[Life]:
    """Return the jobs of a run whose steps take a minute each.

    Args:
        steps: number of steps of the run.
        limit: minutes that a job may take; startup: minutes before its first step.
        save_every: steps between checkpoints, which take no time here.
        on_signal: whether a job is told in time, and saves after the last step that fits.

    Raises:
        ValueError: if a job cannot save anything, so that the run would never end.
    """
    jobs, now, first = [], 0.0, 0
    while first < steps:
        fit = int(limit - startup)
        done = min(fit, steps - first)
        ends = first + done == steps
        kept = done if ends or on_signal else (first + done) // save_every * save_every - first
        if kept <= 0:
            raise ValueError(f"a job takes {fit} steps and saves none of them: save more often than every {save_every}")
        end = now + startup + done if ends else now + limit
        jobs.append(Life(now, end, first, done, kept))
        now, first = end, first + kept
    return jobs


def draw(runs: Mapping[str, Sequence[Life]], startup: float):
    """Return a matplotlib Figure: a lane for each run; a job is its start, the steps it keeps and those it loses."""
    from matplotlib.patches import Rectangle

    figure, axes = subplot(10, 0.6 * len(runs) + 1.3)
    for row, jobs in enumerate(runs.values()):
        for job in jobs:
            parts = ((startup, STARTUP), (job.kept, KEPT), (job.done - job.kept, LOST))
            left = job.begin
            for width, colour in parts:
                axes.barh(row, width, left=left, height=0.55, color=colour, edgecolor="white", linewidth=0.6)
                left += width
            axes.plot([job.end] * 2, [row - 0.38, row + 0.38], color=PAPER["ink"], lw=1.2)
    axes.set_yticks(range(len(runs)), list(runs), fontsize=9)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.01 * max(jobs[-1].end for jobs in runs.values()))
    axes.set_xlabel("minutes of computing time; a black line ends a job", fontsize=9)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)
    words = {"starting": STARTUP, "steps that a checkpoint keeps": KEPT, "steps taken in vain": LOST}
    handles = [Rectangle((0, 0), 1, 1, color=colour, label=word) for word, colour in words.items()]
    axes.legend(handles=handles, frameon=False, fontsize=9, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    return figure
