"""A chart of the ranks' distance from the single-process run: a line at zero, or replicas that drift apart."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minidist.show.demos.data_parallel import drift, lecture
from minidist.show.demos.shared import lanes
from minidist.show.palette import of_rank
from minidist.show.player.scene import Box, Cue, Curve, Frame, Label, Question, Scene, Shape
from minidist.train.result import Run

NAME = "weights"
LEFT, RIGHT, TOP, BOTTOM = 9, 61, 1, 9  # of the chart
APART = "rank 0 to rank 1"
LABELLED = 5  # curves at most
CUES = {
    False: "All ranks' curves lie on zero, to the last bit. Now press b: the same steps with one bucket not summed.",
    True: "Every rank goes its own way, and nothing says so. Ask how one would find out: compare weights, not losses.",
}


@dataclass(frozen=True)
class Drift:
    """A run, seen next to the single-process run.

    Args:
        ranks: the distance of each rank's weights from the single-process run after each step, and at first, as a share
            of the weights' own size: (ranks, steps + 1).
        apart: (steps + 1,), distance between the weights of rank 0 and rank 1.
        losses, right: the loss of each step, and the single-process run's.
    """

    ranks: np.ndarray
    apart: np.ndarray
    losses: Sequence[float]
    right: Sequence[float]

    @classmethod
    def of(cls, run: Run, reference: Run) -> "Drift":
        """Compute the drift of a run of ``drift.train_keeping_weights``."""
        weights = reference.ranks[0].arrays["weights"].astype(np.float64)
        size = np.sqrt(np.mean(weights**2))
        begin = np.zeros((len(run.ranks), 1))  # every rank inits the same weights
        ranks = np.hstack([begin, drift.distances(run, reference) / size])
        pair = [rank.arrays["weights"].astype(np.float64) for rank in run.ranks[:2]]
        apart = np.sqrt(np.mean((pair[0] - pair[1]) ** 2, axis=1)) / size
        return cls(ranks, np.hstack([0, apart]), run.losses, reference.losses)

    @property
    def steps(self) -> int:
        return len(self.apart) - 1

    @property
    def most(self) -> float:
        return max(self.ranks.max(), self.apart.max())


def scene(shown: Drift, most: float, stride: int, verdict: str, details: str, twin: str = "") -> Scene:
    """A frame for each step.

    Args:
        most: the end of the vertical axis.
        stride: every how many weights are compared.
        twin: the name of the correct scene, if this is the broken one.
    """
    steps = shown.steps
    frames = [Frame(tuple(_shapes(shown, most, now)), _note(shown, now, bool(twin)), _facts(shown, now), now)
              for now in range(steps + 1)]  # fmt: skip
    losses = f"{shown.losses[-1]:.3f} after {steps} steps; one process: {shown.right[-1]:.3f}"
    question: Question = lecture.unnoticed(steps, losses) if twin else lecture.exact(1, steps)
    sample = f", every {stride}th weight" if stride > 1 else ""
    key = {f"rank {rank}": of_rank(rank) for rank in range(len(shown.ranks))}
    return Scene(
        f"broken {twin}" if twin else NAME,
        f"How far each rank is from the single-process run: real training, {steps} steps{sample}",
        tuple(frames),
        BOTTOM + 2,
        key | {APART: "ink"},
        verdict,
        1 if twin else None,
        (steps // 2, steps),
        twin,
        details,
        (question,),
        (Cue(0, 3, CUES[bool(twin)]),),
    )


def _shapes(shown: Drift, most: float, now: int) -> list[Shape]:
    def at(step: int, value: float) -> tuple[float, float]:
        return LEFT + (RIGHT - LEFT) * step / shown.steps, BOTTOM - (BOTTOM - TOP) * value / most

    shapes: list[Shape] = [
        Box(LEFT, BOTTOM, RIGHT - LEFT, 0.06, "faint", "", " "),
        Label(LEFT, 0.4, "distance, % of the weights' size", "faint"),
        Label(LEFT - 1, BOTTOM + 1.1, "step", "faint", "end"),
    ]
    for value in lanes.ticks(100 * most, 4):
        _, y = at(0, value / 100)
        shapes += [
            Label(LEFT - 1, y, f"{value:g} %", "faint", "end"),
            Box(LEFT, y, RIGHT - LEFT, 0.06, "faint", "", " "),
        ]
    for step in range(0, shown.steps + 1, 4):
        x, _ = at(step, 0)
        shapes += [lanes.tick(x, BOTTOM + 0.3), Label(x, BOTTOM + 1.1, str(step), "faint", "middle")]
    curves = [(rank, f"rank {rank}", of_rank(rank)) for rank in range(len(shown.ranks))]
    lines = [(name, colour, shown.ranks[rank]) for rank, name, colour in curves] + [(APART, "ink", shown.apart)]
    ends = []  # of the curves: (x, y, name, colour)
    for name, colour, values in lines:
        points = [at(step, value) for step, value in enumerate(values[: now + 1])]
        if now:
            shapes.append(Curve(tuple(points), colour, 2 if name == APART else 5))
        ends.append((*points[-1], "apart" if name == APART else name, colour))
    return shapes + _names(ends)


def _names(ends: Sequence[tuple[float, float, str, str]]) -> list[Shape]:
    """What each curve is, at its end, from the bottom up and a line apart."""
    if len({y for _, y, _, _ in ends}) == 1:
        x, y, *_ = ends[0]
        return [Label(x + 1, y - 0.5, "all ranks")]
    shapes, below = [], BOTTOM + 2.0
    for x, y, name, colour in sorted(ends, key=lambda end: -end[1]):
        below = min(y, below - 1.0)
        shapes.append(Label(x + 1, below, name, colour))
    return shapes if len(ends) <= LABELLED else []


def _note(shown: Drift, now: int, broken: bool) -> str:
    if not now:
        return "All ranks and the single process begin with the same weights, bit for bit."
    if not broken:
        return f"After step {now}: every rank has the bits of the single process. Nobody checked or repaired anything."
    far = f"{100 * shown.ranks[:, now].max():.2f} %"
    if now == 1:
        return f"After step 1 the weights of one bucket differ from rank to rank, by {far} over all weights."
    if now < shown.steps:
        return f"After step {now}: up to {far}. Different weights give different gradients, in all buckets."
    return f"After {now} steps there are {len(shown.ranks)} models, {far} off. No rank crashed, hung or complained."


def _facts(shown: Drift, now: int) -> dict[str, str]:
    def loss(losses: Sequence[float]) -> str:
        return f"{losses[now - 1]:.3f}" if now else "-"

    return {
        "steps": f"{now} of {shown.steps}",
        "loss": loss(shown.losses),
        "loss of one process": loss(shown.right),
        "farthest rank": f"{100 * shown.ranks[:, now].max():.2f} %",
        APART: f"{100 * shown.apart[now]:.2f} %",
    }
