"""One moment of a run that lost a rank: a lane for each rank, checkpoints, and the loss, all on one time axis.

A column is the time of one step. A step that is taken again is a column of its own, to the right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.demos.failure.run import Interrupted, Part
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.player.scene import Box, Label, Shape

LEFT, RIGHT = 8, 72  # of the time
LOSS_LINES = 5
CHECKPOINT, LOSS, LOST = MEANINGS["checkpoint"], MEANINGS["loss"], MEANINGS["lost"]  # no rank has these colours
KEY = {"checkpoint": CHECKPOINT, "killed": "wrong", "lost": LOST, "taken again": "ink", "loss": LOSS}


@dataclass(frozen=True)
class Column:
    """The time of one step.

    Args:
        step: counted from 1; None for the time in which the ranks start again.
        part: 0 before the rank died, 1 after.
        died: whether the rank died in it.
    """

    step: int | None
    part: int
    died: bool = False


def columns(run: Interrupted) -> list[Column]:
    """All columns, from left to right."""
    before = [Column(step + 1, 0, step == run.fault.step) for step in range(run.fault.step + 1)]
    return [*before, Column(None, 1), *(Column(step + 1, 1) for step in range(run.after.first, run.steps))]


def height(run: Interrupted) -> float:
    return _loss_top(run) + LOSS_LINES + 3


def _ranks(part: Part) -> str:
    count = part.layout.world_size
    return f"{count} ranks: {part.layout}" if count > 1 else "1 rank"


def _lanes(run: Interrupted) -> int:
    return run.before.layout.world_size


def _loss_top(run: Interrupted) -> float:
    return _lanes(run) + 3


def _width(run: Interrupted) -> float:
    return (RIGHT - LEFT) / len(columns(run))


def lanes(run: Interrupted, now: int, lost: bool) -> list[Shape]:
    """The ranks' steps in the first ``now`` columns. ``lost``: whether to mark the steps that were lost."""
    width, names = _width(run), [Label(0, 1.5 + rank, f"rank {rank}", of_rank(rank)) for rank in range(_lanes(run))]
    shapes: list[Shape] = [*names, Label(0, 1.5 + _lanes(run), "saved", "faint")]
    shapes.append(Label(LEFT, 0.5, _ranks(run.before)))
    for place, column in enumerate(columns(run)[:now]):
        x, part = LEFT + place * width, (run.before, run.after)[column.part]
        if column.step is None:
            shapes.append(Label(x, 0.5, _ranks(part)))
            continue
        for rank in range(part.layout.world_size):
            shapes.append(_cell(run, column, rank, x, width - 0.25, lost))
        if column.step in part.saved:
            text = str(column.step)
            shapes.append(Box(x, 1 + _lanes(run), width - 0.25, 0.9, CHECKPOINT, text, "S"))
    return shapes


def _cell(run: Interrupted, column: Column, rank: int, x: float, width: float, lost: bool) -> Box:
    y, text = 1 + rank, str(column.step)
    if column.died:
        if rank == run.fault.rank:
            return Box(x, y, width, 0.9, "wrong", "×", "!")
        return Box(x, y, width, 0.9, None, "–", " ", "faint")
    part = (run.before, run.after)[column.part]
    if part.ended_by(rank) < column.step:
        return Box(x, y, width, 0.9, None, "–", " ", "faint")
    if column.part == 0 and column.step - 1 in run.lost and lost:
        return Box(x, y, width, 0.9, LOST, text, "x")
    again = column.part == 1 and column.step - 1 in run.lost
    return Box(x, y, width, 0.9, of_rank(rank), text, "=", "ink" if again else None)


def losses(run: Interrupted, now: int, lost: bool) -> list[Shape]:
    """The loss of each step in the first ``now`` columns, below it."""
    width, top = _width(run), _loss_top(run)
    values = run.before.losses[run.fault.rank] + run.after.losses[0]
    low, high = min(values), max(values)
    shapes: list[Shape] = [Label(0, top + 0.5, f"{high:.2f}", "faint"), Label(0, top + LOSS_LINES / 2, "loss", "faint"),
                           Label(0, top + LOSS_LINES - 0.5, f"{low:.2f}", "faint")]  # fmt: skip
    for place, column in enumerate(columns(run)[:now]):
        if (value := loss_of(run, column)) is None:
            continue
        line = round((high - value) / (high - low) * (2 * LOSS_LINES - 1)) / 2
        gone = lost and column.part == 0 and column.step - 1 in run.lost
        fill, mark = (LOST, "x") if gone else (LOSS, "o")
        shapes.append(Box(LEFT + place * width, top + line, width - 0.25, 0.5, fill, "", mark))
    return shapes


def loss_of(run: Interrupted, column: Column) -> float | None:
    """The loss of a step that was ended."""
    if column.step is None or column.died:
        return None
    rank, part = ((run.fault.rank, run.before), (0, run.after))[column.part]
    return part.losses[rank][column.step - 1 - part.first]


def fingerprints(run: Interrupted) -> list[Shape]:
    """The SHA-256 of the run that was never interrupted, and of this one."""
    top, shapes = _loss_top(run) + LOSS_LINES + 1, []
    same = run.fingerprint == run.reference
    rows: Sequence[tuple] = (
        ("never interrupted", run.reference, None, " ", "ink"),
        ("killed, resumed", run.fingerprint, "right" if same else "wrong", "=" if same else "!", None),
    )
    for line, (name, sha, fill, mark, outline) in enumerate(rows):
        shapes += [Label(0, top + line + 0.5, name), Box(19, top + line, 36, 0.9, fill, sha[:32], mark, outline)]
    return shapes
