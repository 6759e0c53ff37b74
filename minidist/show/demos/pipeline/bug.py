"""A pipeline with one bug: rank 1 swaps the activations of two micro-batches."""

from collections.abc import Collection, Sequence
from unittest import mock

from minidist.comm.failures import Deadlock
from minidist.parallel.pipeline import Pipeline
from minidist.parallel.tools.schedule_check import Slot, needs
from minidist.parallel.tools.schedules import Action
from minidist.show.demos.pipeline.kinds import Kind
from minidist.show.demos.shared.runs import WarmRanks
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.trainer import train_rank

SWAPPED = {0: 1, 1: 0}  # micro-batches; no rank waits for a backward before it has sent both
MISTAKEN = {Action(1, "F", i): other for i, other in SWAPPED.items()}  # action -> the micro-batch it takes instead
BUG = "GPU 1 swaps the activations of micro-batches 0 and 1"


def activations_swapped(world, config, layout, options):
    """Train with the bug: stage 1 swaps the activations of micro-batches 0 and 1, whose shapes are the same."""
    tag = Pipeline.tag

    def swapped(self, stage: int, i: int, way: str) -> int:
        mine = self.group.rank == 1 and way == "forward" and stage == 0
        return tag(self, stage, SWAPPED.get(i, i) if mine else i, way)

    with mock.patch.object(Pipeline, "tag", swapped):
        return train_rank(world, config, layout, options)


def deadlock(warm: WarmRanks, config: TrainConfig, layout: Layout) -> str:
    """Run with the bug until the ranks deadlock; return the error, which says which rank waits for which.

    Raises:
        RuntimeError: if they do not deadlock.
    """
    try:
        warm.train(config, layout, activations_swapped)
    except Deadlock as found:
        return str(found)
    raise RuntimeError(f"{layout} should deadlock with the bug, and it does not")


def slots_with_bug(kind: Kind, ranks: int, micro_batches: int) -> list[list[Slot]]:
    """Return the plan with the bug, up to the point where ranks wait for each other forever.

    Rank 1 waits for the other one of two micro-batches, as if rank 0 had computed the two in reverse order under each
    other's names.
    """
    planned = _planned_with_bug(kind, ranks, micro_batches)
    timed = kind.timed([row[:done] for row, done in zip(planned, _done(planned), strict=True)])
    return [[Slot(_exchanged(slot.action), slot.start, slot.end) for slot in timed[0]], *timed[1:]]


def _planned_with_bug(kind: Kind, ranks: int, micro_batches: int) -> list[list[Action]]:
    planned = kind.planned(ranks, micro_batches)
    return [[_exchanged(action) for action in planned[0]], *planned[1:]]


def _done(planned: Sequence[Sequence[Action]]) -> list[int]:
    """Return how many of its actions each rank can do before it waits forever."""
    stages = 1 + max(action.stage for row in planned for action in row)
    places, done, before = [0] * len(planned), set(), -1
    while len(done) > before:
        before = len(done)
        for rank, row in enumerate(planned):
            place = places[rank]
            if place < len(row) and all(done & set(some) for some in needs(row[place], stages)):
                done.add(row[place])
                places[rank] += 1
    return places


def _exchanged(action: Action) -> Action:
    if action.stage == 0 and action.kind == "F":
        return Action(0, "F", SWAPPED.get(action.micro_batch, action.micro_batch))
    return action


def corrupted_by(mistaken: Collection[Action], slots: Sequence[Sequence[Slot]]) -> set[Action]:
    """Return the mistaken actions and all that use their output, directly or through others."""
    stages = 1 + max(slot.action.stage for row in slots for slot in row)
    found = set(mistaken)
    for slot in sorted((slot for row in slots for slot in row), key=lambda slot: slot.start):
        if any(found & set(some) for some in needs(slot.action, stages)):
            found.add(slot.action)
    return found
