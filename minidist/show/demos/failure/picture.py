"""One moment of a run that lost a rank: the ranks, the loss of every step, and the checkpoints below it.

The axis is the training step, so a run that restarts goes back to the left and takes the lost steps once more.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.show.demos.failure.run import Interrupted, Part
from minidist.show.palette import MEANINGS, of_rank
from minidist.show.player.scene import Arrow, Box, Curve, Label, Shape

HEIGHT = 12
LEFT, RIGHT, TOP, BOTTOM = 9, 69, 2.7, 9  # of the losses
CHECKPOINT, LOSS, LOST = MEANINGS["checkpoint"], MEANINGS["loss"], MEANINGS["lost"]  # no rank has these colours
KEY = {"loss": LOSS, "saved": CHECKPOINT, "lost": LOST, "killed": "wrong"}
FORGOTTEN = "Adam = 0"  # at the fork: what the bug forgets, its moments
WIDE, THIN = 9, 4  # pixels: steps that are lost, and all others


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
    """All columns, in the order of time."""
    before = [Column(step + 1, 0, step == run.fault.step) for step in range(run.fault.step + 1)]
    return [*before, Column(None, 1), *(Column(step + 1, 1) for step in range(run.after.first, run.steps))]


def ranks(run: Interrupted, now: int) -> list[Shape]:
    """The ranks that there are after ``now`` columns, and the dead one, crossed out."""
    seen = columns(run)[:now]
    part: Part = (run.before, run.after)[seen[-1].part if seen else 0]
    shapes: list[Shape] = [Label(LEFT - 2, 0.8, str(part.layout) if part.layout.world_size > 1 else "1", "ink", "end")]
    died = any(column.died for column in seen)
    for rank in range(run.before.layout.world_size):
        dead = died and rank == run.fault.rank
        fill, text, mark = ("wrong", f"× {rank}", "!") if dead else (of_rank(rank), str(rank), "=")
        shapes.append(Box(LEFT + 7.5 * rank, 0, 6.5, 1.5, fill, text, mark, id=f"rank {rank}"))
    return shapes


class Losses:
    """The losses of a run, and of the right run if it has a bug."""

    def __init__(self, run: Interrupted, right: Interrupted | None = None) -> None:
        self.run, self.right = run, right
        self.before, self.after = run.before.losses[run.fault.rank], run.after.losses[0]
        values = [*self.before, *self.after, *(right.after.losses[0] if right else ())]
        self.low, self.high = min(values), max(values)

    def at(self, step: float, loss: float) -> tuple[float, float]:
        """The place of a step's loss. Steps count from 1."""
        x = LEFT + (RIGHT - LEFT) * (step - 1) / (self.run.steps - 1)
        return x, TOP + (BOTTOM - TOP) * (self.high - loss) / (self.high - self.low)

    def axes(self) -> list[Shape]:
        shapes: list[Shape] = [Box(LEFT - 1.5, BOTTOM + 0.4, RIGHT - LEFT + 3, 0.06, "faint", "", " ")]
        shapes += [
            Label(LEFT - 2, self.at(1, loss)[1], f"{loss:.2f}", "faint", "end") for loss in (self.high, self.low)
        ]
        shapes += [
            Label(LEFT - 2, (TOP + BOTTOM) / 2, "loss", LOSS, "end"),
            Label(LEFT - 2, 10, "step", "faint", "end"),
        ]
        for step in range(1, self.run.steps + 1):
            shapes.append(Label(self.at(step, 0)[0], 10, str(step), "ink", "middle"))
        return shapes

    def draw(self, now: int, lost: bool) -> list[Shape]:
        """The first ``now`` columns. ``lost``: whether to mark the steps that were lost."""
        seen = columns(self.run)[:now]
        first = self.run.after.first
        taken = sum(column.part == 0 and not column.died for column in seen)
        again = sum(column.part == 1 and column.step is not None for column in seen)
        shapes = self.axes() + self.saved(seen)
        if lost:
            line = self._line(first, self.before[first - 1 :])
            x, y = line[len(line) // 2]
            shapes += [Curve(line, LOST, WIDE), Label(x - 1, y + 1.2, "lost", "ink", "end")]
            shapes.append(Curve(self._line(1, self.before[:first]), LOSS, THIN))
        elif taken > 1:
            shapes.append(Curve(self._line(1, self.before[:taken]), LOSS, THIN))
        if again and self.right:
            shapes.append(Curve(self._line(first, self._resumed(self.right)[: again + 1]), "faint", THIN))
        if again:
            shapes += self._again(self._resumed(self.run)[: again + 1])
        if any(column.died for column in seen) and not seen[-1].died:
            x, y = self.at(self.run.fault.step + 1, self.before[-1])
            shapes.append(Box(x - 1, y - 0.5, 2, 1, "wrong", "×", "!", id="the death"))
        if seen:
            shapes.append(self._marker(seen))
        if seen and seen[-1].step is None:
            (x, y), (to_x, to_y) = self.at(len(self.before), self.before[-1]), self.at(first, self.before[first - 1])
            arrow = Arrow(x, y - 1, to_x + 1.5, to_y - 0.4, "ink", f"back to step {first}", 2.0)
            shapes += [arrow, Label((x + to_x) / 2 + 5, min(y, to_y) - 0.8, f"back to step {first}")]
        return shapes

    def _line(self, step: int, losses: Sequence[float]) -> tuple[tuple[float, float], ...]:
        return tuple(self.at(step + place, loss) for place, loss in enumerate(losses))

    def _resumed(self, run: Interrupted) -> list[float]:
        """Losses from the step of the checkpoint on."""
        return [self.before[run.after.first - 1], *run.after.losses[0]]

    def _again(self, losses: Sequence[float]) -> list[Shape]:
        """The part after the restart; red from the first loss on that the right run does not have."""
        first = self.run.after.first
        if self.right is None:
            return [Curve(self._line(first, losses), LOSS, THIN)]
        pairs = zip(losses, self._resumed(self.right), strict=False)
        same = next((place for place, (one, right) in enumerate(pairs) if one != right), len(losses))
        found: list[Shape] = [Curve(self._line(first, losses[:same]), LOSS, THIN)]
        wrong = self._line(first + same - 1, losses[same - 1 :])
        if same < len(losses):
            x, y = wrong[0]
            found += [Curve(wrong, "wrong", THIN), Label(x, y - 1, FORGOTTEN, "wrong")]
        return found

    def _marker(self, seen: Sequence[Column]) -> Box:
        """Where the run is."""
        column = seen[-1]
        if column.died:
            x, y = self.at(column.step, self.before[-1])
            return Box(x - 1.5, y - 0.75, 3, 1.5, "wrong", "×", "!", id="the run")
        step = self.run.after.first if column.step is None else column.step
        loss = (self.before[step - 1] if column.part == 0 or column.step is None
                else self.after[step - 1 - self.run.after.first])  # fmt: skip
        x, y = self.at(step, loss)
        wrong = (
            self.right
            and column.part
            and column.step
            and loss != self.right.after.losses[0][step - 1 - self.run.after.first]
        )
        return Box(x - 0.8, y - 0.4, 1.6, 0.8, "wrong" if wrong else LOSS, "", "o", "ink", "the run")

    def saved(self, seen: Sequence[Column]) -> list[Shape]:
        """The checkpoints, each below its step."""
        parts, shapes = (self.run.before, self.run.after), []
        for column in seen:
            if column.step in parts[column.part].saved and not column.died:
                x = min(self.at(column.step, 0)[0] - 3, 66)
                shapes.append(Box(x, 10.6, 6, 1.3, CHECKPOINT, "saved", "S", id=f"checkpoint of step {column.step}"))
        return shapes


def fingerprints(run: Interrupted) -> list[Shape]:
    """The SHA-256 of the run that was never interrupted, and of this one."""
    same, shapes = run.fingerprint == run.reference, []
    rows: Sequence[tuple] = (
        ("never interrupted", run.reference, None, " ", "ink"),
        ("killed, resumed", run.fingerprint, "right" if same else "wrong", "=" if same else "!", None),
    )
    for line, (name, sha, fill, mark, outline) in enumerate(rows):
        y = 2.2 + 1.5 * line
        shapes += [Label(57, y + 0.65, name, "ink", "end"), Box(58, y, 13, 1.3, fill, sha[:8], mark, outline)]
    return shapes
