"""Where the time of a step goes."""

import pytest

from minidist.analysis import breakdown
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run


def log(shift: int, *calls: tuple[int, int]) -> list[Event]:
    """A step of 100 ns that begins at ``shift``, with collectives between these times."""
    events = [Event("all_reduce", "communication", start, end) for start, end in calls]
    return [Event("step 0", "step", -500, -400), *events, Event("step 1", "step", shift, shift + 100)]


def test_the_first_rank_to_arrive_waits():
    early, late = log(0, (10, 40), (50, 60)), log(5, (30, 41), (50, 65))
    first, second = breakdown.seconds([early, late])
    assert first == {"compute": 60 / 1e9, "communication": 20 / 1e9, "waiting": 20 / 1e9}
    assert second == {"compute": 74 / 1e9, "communication": 26 / 1e9, "waiting": 0}


def test_ranks_with_different_collectives_are_refused():
    with pytest.raises(ValueError, match="the same collectives in the same order"):
        breakdown.seconds([log(0, (10, 40)), log(0)])


def test_a_real_run_adds_up(ranks):
    config = TrainConfig(layers=1, heads=2, width=16, context=16, steps=2, global_batch=4)
    result = run(ranks(2), config, Layout.parse("tp=2"), RunOptions(trace=True))
    logs = [rank.log for rank in result.ranks]
    for found, entries in zip(breakdown.seconds(logs), logs, strict=True):
        whole = [entry for entry in entries if getattr(entry, "track", "") == "step"][-1]
        assert sum(found.values()) == pytest.approx((whole.end - whole.start) / 1e9) and min(found.values()) >= 0
        assert found["compute"] > 0 and found["communication"] > 0
