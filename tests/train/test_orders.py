"""Faults that are ordered while a run goes on."""

import pytest

from minidist.comm.failures import RankFailed
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring.live import Moment
from minidist.train.resilience.faults import Fault
from minidist.train.resilience.orders import CURE, ORDERS, order, take_order
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(layers=1, heads=2, width=16, context=8, global_batch=4, micro_batch=1, steps=40, warmup=2)


def test_an_order_is_taken_once_by_its_rank_and_the_last_one_counts(tmp_path):
    assert take_order(tmp_path, 0) is None
    order(tmp_path, 0, "kill")
    order(tmp_path, 0, CURE)
    order(tmp_path, 1, "hang")
    assert [take_order(tmp_path, rank) for rank in (0, 0, 1, 1)] == [CURE, None, "hang", None]
    assert not list(tmp_path.iterdir())
    assert all(Fault.parse(f"rank=0,step=0,kind={what}") for what in ORDERS if what != CURE)


def watched(ranks, folder, size, act, **options):
    """Train, and call ``act(step)`` as rank 0 ends each step. Returns the run, and the events of all ranks."""
    events = []
    result = run(
        ranks(size), CONFIG, Layout(dp=size), RunOptions(progress=True, live=str(folder), **options),
        lambda step, loss: act(step), on_event=lambda rank, event: events.append((rank, event)),
    )  # fmt: skip
    return result, events


@pytest.mark.long
def test_a_rank_is_slowed_and_cured_and_no_bit_changes(ranks, tmp_path):
    def act(step):
        if step in (3, 20):
            order(tmp_path, 1, "slow:3" if step == 3 else CURE)

    result, events = watched(ranks, tmp_path, 2, act)
    faults = [(rank, event[1].kind) for rank, event in events if event[0] == "fault"]
    assert faults == [(1, "slow")] and not list(tmp_path.iterdir())
    assert {rank.fingerprint for rank in result.ranks} == {run(ranks(1), CONFIG, Layout()).ranks[0].fingerprint}


def test_a_rank_is_killed(ranks, tmp_path):
    with pytest.raises(RankFailed, match="rank 2 of 3 was killed"):
        watched(ranks, tmp_path, 3, lambda step: order(tmp_path, 2, "kill") if step == 5 else None)


def test_moments(ranks, tmp_path):
    result, events = watched(ranks, tmp_path, 2, lambda step: None, trace=True)
    moments = [(rank, event[1]) for rank, event in events if event[0] == "moment"]
    assert {rank for rank, _ in moments} == {0, 1}  # at least one each: the first step is always reported
    for _, moment in moments:
        assert isinstance(moment, Moment) and 0 <= moment.step < CONFIG.steps
        names = [name.split()[0] for name, *_ in moment.events]
        assert {"forward", "backward", "optimizer"} <= set(names)
        assert all(moment.start <= begin <= end <= moment.end for *_, begin, end in moment.events)
        assert moment.sent > 0 and moment.memory["parameters"] > 0
    assert result.ranks[0].log  # what a trace records at the end is whole
