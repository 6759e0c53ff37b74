"""What each rank stores: the micro-batches whose forward has begun and whose backward has not ended."""

from collections.abc import Sequence
from dataclasses import dataclass

from minidist.parallel.tools.schedule_check import Slot, in_flight
from minidist.parallel.tools.schedules import Action
from minidist.show.demos.pipeline.cells import NUMBERED
from minidist.show.figures.pipelines import colour_of
from minidist.show.player.scene import Box, Label, Shape

LEFT, RIGHT = 7.5, 17.5  # of the place for all micro-batches of a step


def stored(row: Sequence[Slot], now: float) -> list[Action]:
    """The forwards of a rank whose activations it holds at a time, oldest first."""
    done = {
        (slot.action.stage, slot.action.micro_batch) for slot in row if slot.action.kind in "BW" and slot.end <= now
    }
    begun = [slot.action for slot in row if slot.action.kind == "F" and slot.start < now]
    return [action for action in begun if (action.stage, action.micro_batch) not in done]


@dataclass(frozen=True)
class Stack:
    """One rank's stack, which grows to the right beside its lane; an outline shows its most so far.

    Args:
        row: the rank's actions and their times.
        ranks, micro_batches: sizes of the pipeline.
        virtual: stages of a rank.
    """

    rank: int
    row: Sequence[Slot]
    ranks: int
    micro_batches: int
    virtual: int

    @property
    def width(self) -> float:
        """Width of the activations of one stage."""
        return (RIGHT - LEFT) / self.micro_batches / self.virtual

    def shapes(self, now: float, y: float, h: float) -> list[Shape]:
        most = in_flight([slot.action for slot in self.row if slot.start < now])
        boxes = [self._box(number, action, y, h) for number, action in enumerate(stored(self.row, now))]
        return [*boxes, *([Box(LEFT, y, most * self.width, h, None, "", "", "ink")] if most else [])]

    def _box(self, number: int, action: Action, y: float, h: float) -> Box:
        part = f", stage {action.stage}" if self.virtual > 1 else ""
        name = f"activations of micro-batch {action.micro_batch} on rank {self.rank}{part}"
        text = str(action.micro_batch) if self.width > NUMBERED else ""
        x, w = LEFT + number * self.width, 0.86 * self.width
        return Box(x, y, w, h, colour_of(action, self.ranks), text, "o", id=name)


def limit(ranks: int, micro_batches: int, top: float, bottom: float) -> list[Shape]:
    """Below the stacks their name, and a line at as many micro-batches as there are ranks."""
    x = LEFT + (RIGHT - LEFT) * ranks / micro_batches
    return [
        Label(x, top - 0.5, f"room for {ranks}", "ink", "middle"),
        Box(x - 0.17, top, 0.15, bottom - top, "ink", mark="|"),
        Label(LEFT, bottom + 0.45, "stores", "ink"),
    ]
