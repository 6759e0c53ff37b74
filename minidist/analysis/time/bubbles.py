"""A real pipeline's actions and their times, in the form in which schedules are planned, so that bubbles compare."""

from collections.abc import Sequence

from minidist.analysis.steps import last_step
from minidist.parallel.tools.schedule_check import Slot
from minidist.parallel.tools.schedules import Action


def slots_of(logs: Sequence[list]) -> list[list[Slot]]:
    """What each rank did in the last step of a traced run, and when, in seconds from the first action on.

    Args:
        logs: one for each rank of one pipeline.
    """
    found = [
        [Slot(Action.parse(e.details["action"]), e.start / 1e9, e.end / 1e9) for e in events if "action" in e.details]
        for events in last_step(logs)
    ]
    zero = min(slot.start for rank in found for slot in rank)
    return [[Slot(slot.action, slot.start - zero, slot.end - zero) for slot in rank] for rank in found]
