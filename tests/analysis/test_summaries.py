"""What logs and counts of a run add up to: buckets, axes, experts, pairs of settings, messages, overlap, waiting."""

from itertools import accumulate, product

import numpy as np
import pytest
from samples import MS, SP_MEETS_RECOMPUTE, two_steps

import minidist as md
from minidist.analysis import steps
from minidist.analysis.replay import Flight
from minidist.analysis.steps import departures
from minidist.analysis.traffic import (
    FINISHED,
    PATIENT,
    RUNNING,
    STUCK,
    ExpertLoad,
    along,
    by_axis,
    by_kind,
    edges,
    inside_and_between,
    real_flights,
    renumbered,
    spans,
    state_of,
)
from minidist.trace import Event, Message
from minidist.verify.matrix import bad_and_all, suspicious_pairs

KINDS = ("all_reduce", "communication"), ("backward 0", "compute")


def test_a_bucket_is_sent_when_its_last_gradient_is_complete_and_in_order():
    """One bucket thus delays the next."""
    random = np.random.default_rng(0)
    for count in (1, 2, 5, 40):
        completed = random.permutation(count).astype(float).tolist()
        cuts = sorted(random.choice(count + 1, 3).tolist())
        buckets = [list(range(a, b)) for a, b in zip([0, *cuts], [*cuts, count], strict=True) if a < b]
        full = [max(completed[place] for place in bucket) for bucket in buckets]
        sent = departures(completed, buckets)
        assert [bucket.full for bucket in sent] == full
        assert [bucket.sent for bucket in sent] == list(accumulate(full, max))


def test_collectives_by_axis_and_by_kind():
    """Groups inside an axis count for it; sizes and dtypes of one kind are added up."""
    calls = [("tp", 5), ("shard", 7), ("dp", 1), ("embedding", 2), ("pp", 3), ("tp", 10)]
    calls += [("replicate", 20), ("dp_cp", 40), ("edp", 80), ("cp", 4), ("ep", 6)]
    rows = [{"axis": axis, "name": "all_reduce", "calls": 2, "bytes_sent": size} for axis, size in calls]
    assert by_axis(rows) == {"pp": 5, "dp": 148, "tp": 15, "cp": 4, "ep": 6}
    assert by_kind(rows)["tp", "all_reduce"] == (4, 15) and len(by_kind(rows)) == 10


def test_load_of_experts():
    counts = [np.array([[4, 0, 2, 2, 1, 6], [8, 0, 0, 0, 0, 4]]), np.array([[2, 2, 2, 2, 0, 7], [1, 3, 1, 3, 2, 8]])]
    load = ExpertLoad.of(counts)
    assert load.tokens.shape == (2, 2, 4) and load.dropped.tolist() == [[1, 0], [0, 2]]
    assert load.visits.tolist() == [[6, 4], [7, 8]]
    assert load.imbalance.tolist() == [[2, 4], [1, 1.5]]
    assert ExpertLoad.of([counts[0], 2 * counts[0]]).imbalance.tolist() == [[2, 4], [2, 4]]  # of a batch that grew
    assert load.by_rank(2).tolist() == [[[4, 4], [8, 0]], [[4, 4], [4, 4]]]
    assert load.by_rank(4).tolist() == load.tokens.tolist()


def test_each_flow_belongs_to_one_axis_and_to_a_node_or_to_two():
    sent = np.zeros((8, 8), int)  # rank = 4 pp + 2 dp + tp
    sent[0, 1] = sent[1, 0] = 100
    sent[0, 2] = 30
    sent[0, 4] = sent[4, 0] = 20
    sent[0, 7] = 5  # along no axis alone
    found = along(sent, (2, 2, 2))
    assert {axis: int(flow.sum()) for axis, flow in found.items()} == {"pp": 40, "dp": 30, "tp": 200}
    assert found["dp"][0, 2] == 30 and found["pp"][4, 0] == 20
    for size, node in ((4, 2), (4, 4), (6, 3)):
        sent = np.random.default_rng(size).integers(0, 99, (size, size))
        inside = sum(sent[a, b] for a, b in product(range(size), repeat=2) if a // node == b // node)
        assert inside_and_between(sent, node) == (inside, sent.sum() - inside)
    sent = np.arange(16).reshape(4, 4)
    assert renumbered(sent, (2, 2), (1, 0))[0].tolist() == [0, 2, 1, 3]  # rank 2 is at place 1
    assert np.array_equal(renumbered(renumbered(sent, (2, 2), (1, 0)), (2, 2), (1, 0)), sent)


def test_the_pair_to_blame_is_the_one_that_is_always_bad():
    blamed, bad = frozenset({("sp", 1), ("recompute", "full")}), bad_and_all(SP_MEETS_RECOMPUTE)
    assert bad[blamed] == (2, 2) and bad[frozenset({("sp", 1), ("tp", 2)})] == (2, 4)
    assert suspicious_pairs(SP_MEETS_RECOMPUTE) == [blamed] and suspicious_pairs(SP_MEETS_RECOMPUTE[2:]) == []


def test_flights_run_from_put_to_take_and_spans_share_their_clock():
    logs = [
        [
            Event("work", "compute", 3000, 9000),
            Message("send", 0, 1, 7, 64, 10_000),
            Message("send", 0, 1, 8, 32, 11_000),  # never taken out: no arrow
            Message("receive", 1, 0, 0, 16, 30_000),
        ],
        [
            Message("receive", 0, 1, 7, 64, 20_000),
            Message("send", 1, 0, 0, 16, 21_000),
            Event("wait for rank 0", "wait", 4000, 20_000),
        ],
    ]
    assert real_flights(logs) == [Flight(0, 1, 64, 7.0, 17.0), Flight(1, 0, 16, 18.0, 27.0)]
    assert spans(logs, "compute") == [(0, 0.0, 6.0)] and spans(logs, "wait") == [(1, 1.0, 17.0)]
    assert real_flights([[], []]) == []


def test_the_last_step_of_a_log():
    """Ranks share a clock; what comes after the step is no part of it; what is inside a backward counts already."""
    first, second = steps.last_step([two_steps(), two_steps(late=MS)])
    assert [(e.name, e.start // MS, e.end // MS) for e in first][:2] == [("forward 0", 0, 2), ("backward 0", 2, 5)]
    assert [e.start // MS for e in second] == [e.start // MS + 1 for e in first]
    log = [Event("all_gather", "communication", 12, 13), Event("step 1", "step", 5, 10), Event("wait", "wait", 6, 7)]
    (found,) = steps.traced_step([log])
    assert [(event.name, event.start) for event in found] == [("step 1", 0), ("wait", 1)]
    assert steps.step_length([found]) == 5 and steps.step_length([found, [Event("step 1", "step", 1, 9)], found]) == 9
    (found,) = steps.traced_step(
        [[*log, Event("send", "communication", 9, 14), Event("receive", "communication", 10, 11)]]
    )
    assert [event.name for event in found] == ["step 1", "wait", "send"] and steps.step_length([found]) == 5
    kinds = {
        ("forward 0", "compute"): "forward", ("backward 3", "compute"): "backward", ("s", "step"): None,
        ("all_reduce(SUM)", "communication"): "communication", ("Linear.backward", "compute"): None,
    }  # fmt: skip
    assert {name: steps.kind_of(Event(*name, 0, 1)) for name in kinds} == kinds


def test_the_share_of_communication_that_is_hidden_under_compute():
    """The oracle counts nanosecond by nanosecond; spans are drawn at random, and may overlap."""
    random = np.random.default_rng(0)
    for counts in ((1, 1), (3, 2), (5, 5), (0, 4), (3, 0), (0, 0)):
        lists = [
            [Event(name, track, *sorted(random.choice(20, 2, replace=False).tolist())) for _ in range(count)]
            for count, (name, track) in zip(counts, KINDS, strict=True)
        ]
        talking, busy = ({ns for event in events for ns in range(event.start, event.end)} for events in lists)
        share = len(talking & busy) / len(talking) if talking else 0.0
        assert steps.covered_share(*lists) == steps.hidden_share([*lists[0], *lists[1]]) == share
    assert steps.hidden_share(steps.last_step([two_steps()])[0]) == 1 / 4  # collectives from 14 to 18, backward to 15


def test_the_wait_for_graph_of_a_real_deadlock(ranks):
    with pytest.raises(md.Deadlock) as caught:
        ranks(3).run(lambda world: md.recv(np.zeros(1), (world.rank + 1) % 3, world), timeout=60)
    assert edges(caught.value.waiting) == {0: 1, 1: 2, 2: 0}
    send = "send: waits for rank 12 to take 8,000 bytes, at a.py:7 in main"
    assert edges({4: send, 5: "did not say"}) == {4: 12}
    states = [state_of(rank, {0: 1, 1: 0, 2: 0, 3: 4, 5: 6, 7: 3}, {6}) for rank in range(8)]
    assert states == [STUCK, STUCK, STUCK, PATIENT, RUNNING, STUCK, FINISHED, PATIENT]
