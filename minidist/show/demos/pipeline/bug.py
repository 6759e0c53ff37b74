"""A pipeline with one bug: rank 1 swaps the activations of two micro-batches."""

from collections.abc import Collection, Sequence
from unittest import mock

from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tools.schedule_check import Slot, needs
from minidist.parallel.tools.schedules import Action
from minidist.show.demos.pipeline.kinds import Kind
from minidist.train.trainer import train_rank

SWAPPED = {0: 1, 1: 0}  # micro-batches; no rank waits for a backward before it has sent both
MISTAKEN = {Action(1, "F", i): other for i, other in SWAPPED.items()}  # action -> the micro-batch it takes instead
BUG = "rank 1 swaps the activations of micro-batches 0 and 1"


def activations_swapped(world, config, layout, options):
    """Stage 1 asks for micro-batch 1's activations where it needs 0's, and vice versa: all shapes fit."""
    tag = Pipeline.tag

    def swapped(self, stage, i, way):
        mine = self.group.rank == 1 and way == "forward" and stage == 0
        return tag(self, stage, SWAPPED.get(i, i) if mine else i, way)

    with mock.patch.object(Pipeline, "tag", swapped):
        return train_rank(world, config, layout, options)


def slots_with_bug(kind: Kind, ranks: int, micro_batches: int) -> list[list[Slot]]:
    """The plan with the bug. Rank 1 waits for the other micro-batch of the two: it is as if rank 0 had computed them in
    the other order under each other's names."""
    planned = kind.planned(ranks, micro_batches)
    timed = kind.timed([[_exchanged(action) for action in planned[0]], *planned[1:]])
    return [[Slot(_exchanged(slot.action), slot.start, slot.end) for slot in timed[0]], *timed[1:]]


def _exchanged(action: Action) -> Action:
    if action.stage == 0 and action.kind == "F":
        return Action(0, "F", SWAPPED.get(action.micro_batch, action.micro_batch))
    return action


def corrupted_by(mistaken: Collection[Action], slots: Sequence[Sequence[Slot]]) -> set[Action]:
    """All actions that use the output of a mistaken action, directly or through others, and the mistaken ones."""
    stages = 1 + max(slot.action.stage for row in slots for slot in row)
    found = set(mistaken)
    for slot in sorted((slot for row in slots for slot in row), key=lambda slot: slot.start):
        if any(found & set(some) for some in needs(slot.action, stages)):
            found.add(slot.action)
    return found
