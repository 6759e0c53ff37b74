"""Slow ranks: how a fault makes one, now or on order, what ranks report, and what ``minidist train`` says of it."""

import json
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from unittest import mock

import pytest
from rich.console import Console
from rich.progress import Progress

from minidist import ledger
from minidist.cli.main import main
from minidist.cli.train import command as train
from minidist.cli.train.progress import Narrator
from minidist.comm.failures import RankFailed
from minidist.nn.layers import Module
from minidist.trace import Event
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.measuring.instruments import Instruments, Moment
from minidist.train.resilience import faults
from minidist.train.resilience.elastic import Interruption
from minidist.train.resilience.faults import CURE, ORDERS, Fault, Faults, order, take_order
from minidist.train.result import RunOptions
from minidist.train.trainer import run

CONFIG = TrainConfig(layers=1, heads=2, width=16, context=8, global_batch=14, steps=4)  # 7 micro-batches
FLAGS = "--dp=2 --layers=1 --width=16 --heads=2 --context=8 --global-batch=14".split()  # noqa: SIM905


class HandClock:
    """A clock of computing that the test moves."""

    now = 100.0

    def seconds(self):
        return self.now

    seconds_without_core = seconds

    def compute(self, seconds):
        self.now += seconds

    @property
    def world(self):
        transport = SimpleNamespace(clock=self)
        return SimpleNamespace(rank=1, transport=transport, report=lambda event: None, traffic=0, collectives=0)


def test_a_slow_rank_sleeps_for_all_that_it_computes():
    clock, slept = HandClock(), []

    def sleep(seconds):
        slept.append(seconds)
        clock.compute(seconds)

    made, model = Faults([Fault(1, 2, "slow", 3), Fault(0, 0, "slow", 9)], clock.world), Module()
    model.forward = lambda: clock.compute(1)  # and backward
    made.begin_run(SimpleNamespace(model=SimpleNamespace(local=model)))
    with mock.patch.object(faults.time, "sleep", sleep):
        for step in range(4):
            made.begin_step(step, step == 3)
            model()
            model()
            clock.compute(0.5)  # the update
    assert slept == [0, 2, 3, 2]  # twice what it computed: in step 2, and the last of it and the update in step 3


def test_the_time_of_a_micro_batch_leaves_out_those_without_samples():
    clock = HandClock()
    model, measured = Module(), Instruments(clock.world, None)
    parts = SimpleNamespace(local=model, model=model, trained=[], micro_batches=[])
    gpt = SimpleNamespace(balance=SimpleNamespace(report=list))  # with experts some ranks have such
    measured.begin_run(SimpleNamespace(model=parts, gpt=gpt, optimizer=SimpleNamespace(state=dict)))
    for parts.micro_batches in ([0, 1, 2, None, None], [3, 4]):
        measured.begin_step(0, False)
        for number in parts.micro_batches:
            model.forward = lambda: clock.compute(2 if number is not None else 6)  # noqa: B023  called at once
            model()
        clock.compute(1)
        measured.on_local_gradients()
        measured.end_step(0, 0.0, False)
    ledger.stop()
    assert measured.micro_batch_counts == [3, 2] and measured.micro_batch_seconds == [2, 2.5]
    assert measured.compute_seconds == measured.seconds_without_core == [19, 5]  # as if all of it had had no core


def test_a_rank_that_failed_is_slow_no_more():
    """After the failure its number is another rank's."""
    narrator = Narrator(Progress(console=Console(quiet=True)), CONFIG, Layout(dp=3), 0, None)
    for step, rank in product(range(9), range(3)):
        narrator.on_event(rank, ("pace", step, 9.0 if rank == 1 else 1.0))
    narrator.on_interruption(Interruption(9, (1,), "killed", Layout(dp=3), Layout(dp=2), resumed=5))
    (straggler,) = narrator.stragglers
    assert str(straggler) == "rank 1 was 9.0 times as slow as the others from step 0 to step 8"


@pytest.mark.long
def test_train_names_a_slow_rank(capsys, monkeypatch, tmp_path):
    """A rank that sleeps 100 times as long as it computes: no noise comes near."""

    def with_a_fault(cluster, config, layout, options, *rest):
        return run(cluster, config, layout, replace(options, faults=(Fault(1, 3, "slow", 100),)), *rest)

    monkeypatch.setattr(train, "run", with_a_fault)
    results = tmp_path / "results.json"
    assert main(["train", "--steps=12", *FLAGS, f"--json={results}"]) == 0
    shown = capsys.readouterr()
    (straggler,) = json.loads(results.read_text())["stragglers"]
    assert straggler["rank"] == 1 and straggler["until"] is None and straggler["factor"] > 10
    assert f"rank 1 is {straggler['factor']:.1f} times as slow as the others since step " in shown.out
    assert "rank 1 is " in shown.err  # while it trains


# Faults that are ordered while a run goes on

LONGER = replace(CONFIG, global_batch=4, micro_batch=1, steps=40, warmup=2)


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
        ranks(size), LONGER, Layout(dp=size), RunOptions(progress=True, live=str(folder), **options),
        lambda step, loss: act(step), on_event=lambda rank, event: events.append((rank, event)),
    )  # fmt: skip
    return result, events


@pytest.mark.long
def test_a_rank_is_slowed_and_cured_and_no_bit_changes(ranks, tmp_path):
    orders = {3: "slow:3", 20: CURE}
    act = lambda step: order(tmp_path, 1, orders[step]) if step in orders else None  # noqa: E731
    result, events = watched(ranks, tmp_path, 2, act)
    assert [(rank, event[1].kind) for rank, event in events if event[0] == "fault"] == [(1, "slow")]
    assert not list(tmp_path.iterdir())
    assert {rank.fingerprint for rank in result.ranks} == {run(ranks(1), LONGER, Layout()).fingerprint}


def test_a_rank_is_killed(ranks, tmp_path):
    with pytest.raises(RankFailed, match="rank 2 of 3 was killed"):
        watched(ranks, tmp_path, 3, lambda step: order(tmp_path, 2, "kill") if step == 5 else None)


def test_moments(ranks, tmp_path):
    result, events = watched(ranks, tmp_path, 2, lambda step: None, trace=True)
    moments = [(rank, event[1]) for rank, event in events if event[0] == "moment"]
    assert {rank for rank, _ in moments} == {0, 1}  # at least one each: the first step is always reported
    for rank, moment in moments:
        assert isinstance(moment, Moment) and 0 <= moment.step < LONGER.steps
        names = [name.split()[0] for name, *_ in moment.events]
        assert {"forward", "backward", "optimizer"} <= set(names)
        assert all(moment.start <= begin <= end <= moment.end for *_, begin, end in moment.events)
        assert moment.sent * LONGER.steps == result.ranks[rank].traffic.sent[:, 0].sum() > 0  # bytes, each step as many
        assert moment.memory["parameters"] > 0
    assert result.ranks[0].log  # what a trace records at the end is whole


def test_a_step_of_the_trace_is_reported_too_and_the_trace_is_whole(ranks, tmp_path):
    """An asynchronous run is traced from its first step on."""
    layout, events = Layout(dp=2, sync="async"), []
    config, options = replace(LONGER, steps=3), RunOptions(live=str(tmp_path), trace=True)
    result = run(ranks(3), config, layout, options, on_event=lambda rank, event: events.append((rank, event)))
    moments = {rank: event[1] for rank, event in reversed(events) if event[0] == "moment"}
    assert {rank: moment.step for rank, moment in moments.items()} == {0: 0, 1: 0, 2: 0}
    for rank in result.ranks:
        steps = [event.name for event in rank.log if isinstance(event, Event) and event.track == "step"]
        assert steps == ["step 0", "step 1", "step 2"]
