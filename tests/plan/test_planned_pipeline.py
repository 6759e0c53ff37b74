"""The plan's closed forms of pipelines against the schedules as data, played action by action."""

from itertools import product

import pytest

from minidist.parallel.tools.schedule_check import in_flight as in_flight_of
from minidist.parallel.tools.schedule_check import timeline
from minidist.parallel.tools.schedules import schedule
from minidist.plan.layout import PlannedLayout
from minidist.plan.memory import in_flight
from minidist.plan.step.pipeline import pipeline_seconds

PARTS = {"F": 1.0, "B": 2.0, "I": 1.0, "W": 1.0}  # of a slot of 3; W is a third of it
NAMES = ("naive", "gpipe", "1f1b", "interleaved", "zb-h1")
SIZES = [
    (name, p, m, v)
    for name, p, m, v in product(NAMES, range(2, 8), range(1, 15), (1, 2, 3))
    if (v == 1 or name == "interleaved") and (m % p == 0 or name != "interleaved")
]  # fmt: skip


def played(name: str, slots: list[float], micro_batches: int, virtual: int = 1) -> float:
    """Seconds of a schedule whose ranks need so long for one micro-batch through all of their stages."""
    ranks = len(slots)
    lists = timeline(
        schedule(name, ranks, micro_batches, virtual),
        lambda action: PARTS[action.kind] / 3 * slots[action.stage % ranks] / virtual,
    )
    return max(rank[-1].end for rank in lists)


@pytest.mark.parametrize("name", NAMES)
def test_equal_ranks_take_as_long_as_the_schedule(name):
    for _, p, m, v in (size for size in SIZES if size[0] == name):
        if name == "zb-h1" and m < p:
            continue  # see below
        working, idle = pipeline_seconds(name, v, m, [3.0] * p, 1 / 3, 1 / 3)
        assert working == 3.0 * m
        assert working + idle == pytest.approx(played(name, [3.0] * p, m, v), abs=1e-9), (p, m, v)


def test_zb_h1_needs_a_micro_batch_for_each_rank_to_fill_what_was_idle():
    """With fewer there are too few products for weights: the closed form is a lower bound, and 1F1B an upper one."""
    for p, m in product(range(2, 8), range(1, 7)):
        if m < p:
            short = sum(pipeline_seconds("zb-h1", 1, m, [3.0] * p, 1 / 3, 1 / 3))
            long = sum(pipeline_seconds("1f1b", 1, m, [3.0] * p, 1 / 3, 1 / 3))
            assert short <= played("zb-h1", [3.0] * p, m) <= long


@pytest.mark.parametrize("name", ["naive", "gpipe", "1f1b", "zb-h1"])
def test_a_slow_last_rank_sets_the_pace(name):
    """It has the head: m slots of it, and one of each other rank, before its first and behind its last."""
    for slots in ([3, 3, 3, 6], [3, 3, 9], [3, 6, 9, 12], [3, 12], [6, 9, 6, 3, 9]):
        for m in (1, 2, 3, 4, 5, 8, 13):
            if name == "zb-h1" and m < len(slots):
                continue
            assert sum(pipeline_seconds(name, 1, m, slots, 1 / 3, 1 / 3)) == pytest.approx(played(name, slots, m)), (
                slots,
                m,
            )


def test_where_another_rank_is_the_slowest_1f1b_ends_earlier():
    """It runs forwards ahead while the others work, so the closed form is an upper bound; GPipe's stays exact."""
    for slots in ([9, 6, 4, 3], [6, 3, 3, 3], [3, 3, 6, 3], [12, 3]):
        for m in (2, 5, 8, 30):
            bound = sum(pipeline_seconds("1f1b", 1, m, slots, 1 / 3, 1 / 3))
            assert m * max(slots) <= played("1f1b", slots, m) < bound == pytest.approx(played("gpipe", slots, m))


@pytest.mark.parametrize("name", NAMES)
def test_each_rank_holds_what_its_schedule_holds(name):
    for _, p, m, v in (size for size in SIZES if size[0] == name):
        layout = PlannedLayout(pp=p, schedule=name, virtual=v)
        lists = schedule(name, p, m, v)
        assert [in_flight(layout, rank, m) for rank in range(p)] == [in_flight_of(actions) for actions in lists], (
            p,
            m,
            v,
        )
