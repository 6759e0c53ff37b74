"""The last step of a log, and how much of its communication is hidden under compute."""

import pytest
from samples import MS, two_steps

from minidist.analysis import steps
from minidist.analysis.time import overlap
from minidist.trace import Event


def test_only_the_last_step_is_taken_and_ranks_share_a_clock():
    first, second = steps.last_step([two_steps(), two_steps(late=MS)])
    assert [(e.name, e.start // MS, e.end // MS) for e in first][:2] == [("forward 0", 0, 2), ("backward 0", 2, 5)]
    assert [e.start // MS for e in second] == [e.start // MS + 1 for e in first]
    with pytest.raises(ValueError, match="trace=True"):
        steps.last_step([[]])


def test_hidden_share():
    assert overlap.hidden_share(steps.last_step([two_steps()])[0]) == 1 / 4  # collectives from 14 to 18, backward to 15
    assert overlap.hidden_share([Event("forward 0", "compute", 0, 5)]) == 0.0
    nested = [Event("backward 0", "compute", 0, 9), Event("all_reduce", "communication", 2, 4)]
    assert overlap.hidden_share(nested) == 1.0


def test_times_that_overlap_count_once():
    busy = [Event("a", "compute", 0, 6), Event("b", "compute", 4, 8)]
    assert overlap.covered_share([Event("c", "communication", 4, 12)], busy) == 1 / 2
    assert overlap.covered_share([], busy) == 0.0


def test_what_comes_after_the_step_is_skipped():
    log = [Event("all_gather", "communication", 12, 13), Event("step 1", "step", 5, 10), Event("wait", "wait", 6, 7)]
    (found,) = steps.traced_step([log])
    assert [(event.name, event.start) for event in found] == [("step 1", 0), ("wait", 1)]
    assert steps.step_length([found]) == 5


def test_kinds():
    events = [Event("forward 0", "compute", 0, 1), Event("all_reduce(SUM)", "communication", 0, 1)]
    assert [steps.kind_of(event) for event in events] == ["forward", "communication"]
    assert steps.kind_of(Event("s", "step", 0, 1)) is None
    assert steps.kind_of(Event("backward 3", "compute", 0, 1)) == "backward"
    assert steps.kind_of(Event("Linear.backward", "compute", 0, 1)) is None  # inside a backward that counts already
