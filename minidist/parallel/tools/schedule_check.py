"""Checks of a schedule without running it: a proof that it can run, the time of each action, the activations it holds.

An action begins when the rank's previous action has ended and its inputs have arrived:

    sFi    the previous stage's F of micro-batch i, whose output it takes
    sBi    its own forward, and the next stage's backward (B or I), whose gradient it takes
    sIi    the same
    sWi    its own I

Inputs from another rank arrive as messages. A send never waits, so an action waits only for its inputs. If at some
point no rank's next action can begin, the schedule deadlocks.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minidist.overrides import overridable
from minidist.parallel.tools.schedules import Action

SLOTS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}  # a backward multiplies twice as much as a forward


@dataclass(frozen=True)
class Slot:
    """An action and its time, from ``start`` to ``end``, in the unit of the durations."""

    action: Action
    start: float
    end: float


class ScheduleError(ValueError):
    """Raised for a schedule that cannot run, or that omits or repeats work."""


@overridable
def needs(action: Action, stages: int) -> list[tuple[Action, ...]]:
    """Return what an action waits for, as a list of tuples: one action of each tuple must have ended."""
    stage, i = action.stage, action.micro_batch
    if action.kind == "W":
        return [(Action(stage, "I", i),)]
    before = [(Action(stage - 1, "F", i),)] if stage else []
    if action.kind == "F":
        return before
    behind = [(Action(stage + 1, "B", i), Action(stage + 1, "I", i))] if stage + 1 < stages else []
    return [(Action(stage, "F", i),), *behind]


@overridable
def check_schedule(schedule: Sequence[Sequence[Action]], micro_batches: int) -> None:
    """Prove that a schedule can run, and takes every micro-batch forward and backward once through every stage.

    Args:
        schedule: the actions of each rank.
        micro_batches: number of micro-batches.

    Raises:
        ScheduleError: if it does not. The error names the first action that is missing, repeated or on two ranks, or
            the actions that wait for each other.
    """
    ranks_of: dict[int, int] = {}
    for rank, actions in enumerate(schedule):
        for action in actions:
            if ranks_of.setdefault(action.stage, rank) != rank:
                raise ScheduleError(
                    f"stage {action.stage} is on rank {ranks_of[action.stage]}, but {action} is on rank {rank}"
                )
    stages = max(ranks_of, default=-1) + 1
    done = Counter(action for rank in schedule for action in rank)
    for stage in range(stages):
        if stage not in ranks_of:
            raise ScheduleError(f"no rank has stage {stage}, although there is a stage {stages - 1}")
        for i in range(micro_batches):
            forward, whole, halves = ([done[Action(stage, kind, i)] for kind in kinds] for kinds in ("F", "B", "IW"))
            if forward != [1] or sorted((whole, halves)) not in ([[0], [1, 1]], [[0, 0], [1]]):
                raise ScheduleError(
                    f"micro-batch {i} must go through stage {stage} once forward (F) and once backward (B, or I and "
                    f"W), but there are {forward[0]} F, {whole[0]} B, {halves[0]} I and {halves[1]} W"
                )
    for action in done:
        if action.micro_batch >= micro_batches:
            raise ScheduleError(f"{action}: micro-batches are counted from 0 to {micro_batches - 1}")
    timeline(schedule)


@overridable
def timeline(
    schedule: Sequence[Sequence[Action]], duration: Callable[[Action], float] = lambda action: SLOTS[action.kind]
) -> list[list[Slot]]:
    """Return the times of each rank's actions, if messages take no time: every action begins as soon as it can.

    Args:
        schedule: the actions of each rank.
        duration: function from an action to the time that it takes.

    Raises:
        ScheduleError: if ranks wait for each other for ever, or for an action of no rank; it says what each waits for.
    """
    stages = 1 + max((action.stage for actions in schedule for action in actions), default=-1)
    ended: dict[Action, float] = {}
    found: list[list[Slot]] = [[] for _ in schedule]
    moved = True
    while moved:
        moved = False
        for actions, slots in zip(schedule, found, strict=True):
            while len(slots) < len(actions):
                action = actions[len(slots)]
                times = [[ended[one] for one in some if one in ended] for some in needs(action, stages)]
                if not all(times):
                    break  # an input is still missing
                start = max([*map(max, times), slots[-1].end if slots else 0.0])
                slots.append(Slot(action, start, start + duration(action)))
                ended[action] = slots[-1].end
                moved = True
    stuck = {rank: len(slots) for rank, slots in enumerate(found) if len(slots) < len(schedule[rank])}
    if stuck:
        lines = []
        for rank, place in stuck.items():
            action = schedule[rank][place]
            missing = [" or ".join(map(str, some)) for some in needs(action, stages) if not set(some) & ended.keys()]
            lines.append(f"rank {rank} is at {action}, which needs {' and '.join(missing)}")
        raise ScheduleError("this schedule can never end: " + "; ".join(lines))
    return found


def bubble(slots: Sequence[Sequence[Slot]]) -> float:
    """Share of all ranks' time, from the first action to the last, in which they are idle: 0 to 1."""
    busy = sum(slot.end - slot.start for rank in slots for slot in rank)
    begin = min(slot.start for rank in slots for slot in rank)
    end = max(slot.end for rank in slots for slot in rank)
    return 1 - busy / (len(slots) * (end - begin))


def in_flight(actions: Sequence[Action]) -> int:
    """Return the largest number of micro-batches whose activations a rank holds at once, summed over its stages.

    A stage holds them from the forward until the end of the backward: if that is in halves, until W.
    """
    held = most = 0
    for action in actions:
        held += (action.kind == "F") - (action.kind in "BW")
        most = max(most, held)
    return most
