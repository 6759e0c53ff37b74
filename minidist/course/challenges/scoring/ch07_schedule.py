"""Chapter 7: pipeline schedules with the smallest bubble for the activations that a rank can hold."""

from minidist.course.challenges.challenge import Challenge, words
from minidist.course.sandbox.student import Student
from minidist.parallel.tools.schedule_check import SLOTS, ScheduleError, bubble, check_schedule, in_flight, timeline
from minidist.parallel.tools.schedules import Action

# (ranks, micro-batches, how many micro-batches' activations a rank can hold)
CASES = ((4, 8, 2), (4, 8, 3), (4, 12, 7), (6, 12, 3), (6, 12, 6), (8, 16, 4), (8, 24, 6), (8, 16, 8))
MOST_VIRTUAL = 4


def score(student: Student) -> float:
    """The bubble in percent of all ranks' time, the mean over pipelines."""
    return sum(100 * _bubble(student, *case) for case in CASES) / len(CASES)


def _bubble(student: Student, ranks: int, micro_batches: int, limit: int) -> float:
    found = student.call("choose_schedule", ranks, micro_batches, limit)
    what = f"{ranks} ranks, {micro_batches} micro-batches, at most {limit}"
    per_rank = isinstance(found, list | tuple) and len(found) == ranks
    assert per_rank, f"{what}: expected a list of actions for each rank, got {found!r:.60}"
    schedule = [[Action.parse(action) for action in words(actions, "a rank's actions")] for actions in found]
    stages = [{action.stage for action in actions} for actions in schedule]
    virtual = len(stages[0])
    assert all(len(of_rank) == virtual for of_rank in stages) and 1 <= virtual <= MOST_VIRTUAL, (
        f"{what}: expected the same number of stages on every rank, 1 to {MOST_VIRTUAL}, got {[*map(len, stages)]}"
    )
    try:
        check_schedule(schedule, micro_batches)
    except ScheduleError as error:
        raise AssertionError(f"{what}: {error}") from None
    for rank, actions in enumerate(schedule):
        held = in_flight(actions) / virtual
        assert held <= limit, f"{what}: rank {rank} holds the activations of {held:g} micro-batches"
    return bubble(timeline(schedule, lambda action: SLOTS[action.kind] / virtual))


CHALLENGE = Challenge(
    chapter=7,
    name="schedule",
    what="schedule",
    title="The smallest bubble within a limit on activations",
    rule="Your schedule is proved and timed without running it: F, I and W take one slot, B takes two, and messages "
    "take no time. A rank may have 1 to 4 stages, which are as many times shorter and lighter. The score is the "
    "bubble, for several pipelines; the activations that a rank holds are a limit.",
    unit="%",
    library=45.28,
    known=16.59,
    idea='Two stages on each rank, placed in a V, and backwards in two halves: Qi et al., "Pipeline Parallelism with '
    'Controllable Memory" (2024)',
    score=score,
)
