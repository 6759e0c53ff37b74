"""Pictures of runs, schedules and experiments (minidist/show/figures): they show what was run or measured."""

import numpy as np
import pytest
from drawn import bars, words
from figures.ch05 import gather_overlap
from figures.ch06 import block
from samples import MS, SP_MEETS_RECOMPUTE, two_steps

from minidist.nn.gpt import GPTConfig
from minidist.nn.precision.formats import BFLOAT16, E4M3, FLOAT16
from minidist.parallel.tools.schedule_check import timeline
from minidist.parallel.tools.schedules import schedule
from minidist.plan.batches import BatchExperiment
from minidist.plan.cluster.hardware import load
from minidist.plan.scaling.experiment import Experiment as ScalingExperiment
from minidist.show.figures import (
    bits,
    contributions,
    grid,
    large_batches,
    memory,
    overlap,
    pipelines,
    roofline,
    scaling,
)
from minidist.show.figures import timeline as lanes
from minidist.show.perfetto import to_perfetto
from minidist.trace import Event, Message
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run

pytestmark = pytest.mark.usefixtures("readable_figures")  # in a notebook


def test_bits_are_those_of_the_number_and_of_the_nearest_one():
    assert bits.rows(-1.5, [E4M3])[1] == ("e4m3", ("1", "0111", "100"), -1.5)
    assert bits.rows(0.1, [FLOAT16])[1][2] == 0.0999755859375
    assert len(bits.draw(0.1, [BFLOAT16], "0.1").axes[0].patches) == 32 + 16


def test_a_sum_of_marks_shows_whose_contributions_it_holds():
    arrays = [contributions.marked(rank, 4) for rank in range(4)]
    some = arrays[0] + arrays[1] + arrays[3]
    assert contributions.held(some[1], 4) == [(0, 1), (1, 1), (3, 1)]
    assert int(sum(contributions.marked(rank, 8).sum() for rank in range(8))) == 2**64 - 1  # 64 different bits
    contributions.draw([("before", np.stack(arrays)), ("after", np.stack([some] * 4))], 4, outline_changes=True)


def test_memory_fills_one_device_after_the_other_and_nothing_is_lost():
    buckets = {"parameters": 140.0, "gradients": 140.0, "master": 280.0, "exp_avg": 280.0, "exp_avg_sq": 280.0}
    devices = memory.fill(buckets, 80.0)
    assert len(devices) == 14 and all(pieces[-1][2] == pytest.approx(80) for pieces in devices)
    for name, amount in buckets.items():
        pieces = [high - low for pieces in devices for piece, low, high in pieces if piece == name]
        assert sum(pieces) == pytest.approx(amount)
    memory.draw({"parameters": 50, "gradients": 60}, 80, "a title")


def test_logs_are_drawn_and_exported():
    overlap.draw({"short": [two_steps()] * 2, "long": [two_steps(), two_steps(late=5 * MS)]})
    logs = [
        [Event("forward 0", "compute", 5000, 9000), Message("send", 0, 1, 0, 64, 12_000)],
        [Message("receive", 0, 1, 0, 64, 20_000), Event("s", "step", 5000, 31_000)],
    ]
    events = to_perfetto(logs)["traceEvents"]
    slices = [(e["pid"], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert slices == [
        (0, "forward 0", 0, 4), (0, "send to rank 1", 7, 1), (1, "receive from rank 0", 15, 1), (1, "s", 0, 26)
    ]  # fmt: skip
    assert [(e["ph"], e["id"], e["pid"], e["ts"]) for e in events if e["ph"] in "sf"] == [
        ("s", "0-1-0", 0, 7), ("f", "0-1-0", 1, 15)
    ]  # fmt: skip
    assert {"rank 0", "rank 1", "forward"} <= {*words(lanes.draw(logs, "a title"))}


def test_a_schedule_is_drawn_action_by_action_with_its_bubble():
    slots = timeline(schedule("1f1b", 3, 4))
    figure = pipelines.draw({"1F1B": slots})
    assert sorted(bars(figure.axes[0])) == sorted((s.start, s.end - s.start) for row in slots for s in row)
    assert "1F1B: bubble 33.3%" in words(figure)


@pytest.mark.parametrize("sp", [0, 1])
def test_a_block_of_a_real_run_has_its_collectives_where_the_chapter_says(ranks, sp):
    config = TrainConfig(layers=2, heads=4, width=24, context=16, global_batch=1, micro_batch=1, steps=1)
    result = run(ranks(2), config, Layout(tp=2, sp=sp), RunOptions(trace=True))
    first, last = ("all_gather_into_tensor", "reduce_scatter_tensor") if sp else ("", "all_reduce")
    for rank in result.ranks:
        names, there, back = block.block(rank.log, smallest=4 * 16 * 24)
        assert names[1::6] == ["CopyToHeads"] * 2 and names[4::6] == ["ReduceFromHeads"] * 2
        forward = {1: first, 5: last, 7: first, 11: last}
        backward = {1: last, 5: first, 7: last, 11: first}
        for calls, places in ((there, forward), (back, backward)):
            assert {call.place: call.name for call in calls} == {place: name for place, name in places.items() if name}
            assert {call.elements for call in calls} == {16 * 24}


def test_all_spans_of_a_real_run_of_zero_3_are_told_apart(ranks):
    config = TrainConfig(layers=2, width=16, context=16, global_batch=2, micro_batch=1, steps=1)
    result = run(ranks(2), config, Layout(2, zero=3), RunOptions(trace=True))
    kinds = {gather_overlap.kind_of(entry) for entry in result.ranks[0].log if isinstance(entry, Event)}
    assert kinds - {None} == {*gather_overlap.COLOURS}


def test_dots_of_a_roofline_lie_on_the_roof_unless_they_were_measured():
    chip = load().accelerators["h100"]
    model = GPTConfig(vocab=50257, context=2048, layers=32, heads=32, width=4096)
    works = roofline.ends_of_the_roofline(model) | {"here": [roofline.Dot("1", 2.0, 4e9)]}
    figure = roofline.draw(chip.flops["bf16"], chip.memory_bandwidth, works, "", "bf16")
    found = {line.get_label(): line.get_xydata() for line in figure.axes[0].get_lines()}
    for name, points in found.items():
        if name.startswith(("decode", "prefill")):
            np.testing.assert_allclose(points[:, 1], np.minimum(989.4e12, points[:, 0] * 3.35e12), rtol=1e-12)
    assert found["here"].tolist() == [[2.0, 4e9]]


def test_runs_of_the_large_batch_experiment_and_their_fits_are_where_they_were_measured():
    measured = BatchExperiment.read()
    left, _ = large_batches.draw(measured).axes
    best = {(o, b): measured.best_rate(o, b) for o in measured.optimizers for b in measured.batches}
    points = {tuple(p) for line in left.lines if line.get_linestyle() == "None" for p in line.get_xydata().tolist()}
    assert points == {(r.samples, r.steps) for r in measured.runs if r.rate == best[r.optimizer, r.batch]}
    curves = [line.get_xydata() for line in left.lines if line.get_linestyle() == "-"]
    for optimizer, curve in zip(measured.optimizers, curves, strict=True):
        fit = measured.tradeoff(optimizer)
        np.testing.assert_allclose((curve[:, 1] / fit.least_steps - 1) * (curve[:, 0] / fit.least_samples - 1), 1)


def test_runs_of_the_scaling_experiment_are_where_they_were_measured(monkeypatch):
    monkeypatch.setattr("minidist.plan.scaling.experiment.DRAWS", 3)
    measured = ScalingExperiment.read()
    left, _ = scaling.draw(measured).axes
    shown = [point for line in left.lines if line.get_marker() in "osD^vP" for point in line.get_xydata().tolist()]
    assert sorted(shown) == sorted([run.parameters, run.loss] for run in (*measured.runs, *measured.next_runs))


def test_the_matrix_of_settings_shows_every_run():
    *_, seconds, _, _ = grid.draw(SP_MEETS_RECOMPUTE, "t").axes
    assert len(seconds.patches) == len(SP_MEETS_RECOMPUTE) and "X" in grid.as_text(SP_MEETS_RECOMPUTE)
