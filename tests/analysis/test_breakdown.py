"""Where the time of a step goes."""

from itertools import pairwise

import pytest
from choosing import long

from minidist.analysis.time import breakdown
from minidist.trace import Event, Kernel, Message
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run


def call(name: str, start: int, end: int, stream: int = 0) -> Event:
    return Event("all_reduce", "communication", start, end, {"bytes": 8, "call": name}, stream)


def log(shift: int, *entries) -> list:
    """A step of 100 ns that begins at ``shift``, and what happens within it."""
    return [Event("step 0", "step", -500, -400), *entries, Event("step 1", "step", shift, shift + 100)]


def times(*logs: list) -> list[dict[str, float]]:
    """The ns of each kind in the last step, without those that took none."""
    return [
        {kind: round(1e9 * seconds) for kind, seconds in steps[-1].items() if seconds}
        for steps in breakdown.seconds_by_kind(logs)
    ]


def test_the_first_rank_to_arrive_waits():
    early, late = (
        log(shift, *(call(str(i), *span) for i, span in enumerate(spans)))
        for shift, spans in ((0, [(10, 40), (50, 60)]), (5, [(30, 41), (50, 65)]))
    )
    first, second = breakdown.seconds([early, late])
    assert first == pytest.approx({"compute": 60 / 1e9, "communication": 20 / 1e9, "waiting": 20 / 1e9})
    assert second == pytest.approx({"compute": 74 / 1e9, "communication": 26 / 1e9, "waiting": 0})


def test_calls_of_different_groups_are_told_apart():
    """Ranks 0 and 1 are a group, rank 2 calls the same collective of another one, late."""
    same, other = [log(0, call("a.1", start, 50)) for start in (20, 10)], log(0, call("b.1", 45, 50))
    assert times(*same, other) == [
        {"rest": 70, "communication": 30},
        {"rest": 60, "waiting": 10, "communication": 30},
        {"rest": 95, "communication": 5},
    ]


def test_a_wait_within_a_collective_belongs_to_it():
    """Both ranks have called it, and one polls for a message of it that the other still prepares."""
    polling = [Event("wait for rank 1", "wait", 20, 40), call("a.1", 10, 50)]
    assert times(log(0, *polling), log(0, call("a.1", 10, 50))) == [{"rest": 60, "communication": 40}] * 2


def test_nested_spans_count_once():
    """A product inside a recomputation, inside the backward of an operation that has to have its input again."""
    entries = [
        Kernel("Linear", 1000, 8, "fp32", 0),
        Event("Linear", "compute", 20, 35),
        Event("recompute", "compute", 15, 40),
        Kernel("GELU.backward", 0, 8, "fp32", 0),
        Event("GELU.backward", "compute", 12, 50),
        Event("backward 0", "compute", 10, 60),
        call("a.1", 75, 80),
        Event("optimizer", "compute", 70, 90),
    ]
    assert times(log(0, *entries)) == [
        {"products": 15, "elementwise": 13, "rest": 10 + 12 + 30, "optimizer": 15, "communication": 5}
    ]


def test_what_is_hidden_under_compute_counts_as_compute():
    """Two all-reduces in the background: one runs while the rank computes, for the other it waits at the end."""
    kernel = Kernel("Linear.backward", 1000, 8, "fp32", 0)
    first = [
        call("a.1", 10, 30, stream=1),
        kernel,
        Event("Linear.backward", "compute", 0, 60),
        call("a.2", 40, 90, stream=1),
        Event(breakdown.BACKGROUND, "wait", 65, 90),
        Event("sync gradients", "wait", 60, 95),
    ]
    second = [call("a.1", 15, 30, stream=1), Event("Add", "compute", 0, 70), call("a.2", 72, 90, stream=1)]
    assert times(log(0, *first), log(0, *second)) == [
        {"products": 60, "waiting": 7, "communication": 18, "rest": 15},
        {"elementwise": 70, "rest": 30},
    ]


def test_a_message_is_waited_for_until_it_is_sent():
    sender = [Message("send", 0, 1, 0, 8, 30)]
    receiver = [
        Event("wait for rank 0", "wait", 20, 44),
        Message("receive", 0, 1, 0, 8, 44),
        Event("receive 0", "wait", 10, 45),
        Event("send the rest", "wait", 80, 90),  # nobody takes it
    ]
    first, second = times(log(0, *sender), log(0, *receiver))
    assert first == {"rest": 100}
    assert second == {"waiting": 20 + 10, "communication": 15, "rest": 55}


def test_what_is_between_steps_is_left_out():
    early, late = Event("Add", "compute", -450, -430), Event("Add", "compute", -300, -200)
    (first, second), *_ = breakdown.seconds_by_kind([log(0, early, late)])
    assert first["elementwise"] == 20 / 1e9 and second["elementwise"] == 0
    assert sum(first.values()) == pytest.approx(100 / 1e9) == sum(second.values())


def test_a_log_without_a_step_is_refused():
    with pytest.raises(ValueError, match="no event on the track 'step'"):
        breakdown.seconds_by_kind([log(0), [Event("Add", "compute", 0, 1)]])


RUNS = {
    "dp=2,sync=overlapped,bucket_mb=0.001": {},
    "tp=2,recompute=full": {},
    "pp=2,stages=2+1": {"layers": 3},
    "zero=3,dp=2,prefetch=1": {},
    "cp=2": {"sequence_chunks": 2, "attention": "tiled", "attention_tile": 4},
    "ep=2,dp=2": {"experts": 4, "expert_hidden": 16},
}


@pytest.mark.parametrize("layout", [*list(RUNS)[:2], *map(long, list(RUNS)[2:]), "dp=1"])
def test_a_real_run_adds_up(ranks, layout):
    split, settings = Layout.parse(layout), {"layers": 2, "heads": 2, "width": 16, "context": 16, "global_batch": 8}
    config = TrainConfig(**settings | RUNS.get(layout, {}), steps=3)
    result = run(ranks(split.world_size), config, split, RunOptions(trace=True))
    logs = [rank.log for rank in result.ranks]
    for steps, entries in zip(breakdown.seconds_by_kind(logs), logs, strict=True):
        spans = [entry for entry in entries if getattr(entry, "track", "") == "step" and isinstance(entry, Event)]
        assert len(steps) == len(spans) == 2 and all(a.end <= b.start for a, b in pairwise(spans))
        for found, span in zip(steps, spans, strict=True):
            assert sum(found.values()) == pytest.approx((span.end - span.start) / 1e9)
            assert min(found.values()) >= 0
            assert min(found[kind] for kind in ("products", "elementwise", "optimizer", "rest")) > 0
            assert (found["communication"] + found["waiting"] > 0) == (split.world_size > 1)
    assert all(found["compute"] > 0 for found in breakdown.seconds(logs))
