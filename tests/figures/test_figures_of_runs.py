"""Pictures of runs, schedules and experiments (minidist/show/figures): they show what was run or measured."""

import io
from statistics import fmean

import numpy as np
import pytest
from drawn import bars, heights, words
from figures.ch05 import gather_overlap
from figures.ch06 import block
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from PIL import Image
from samples import MS, SP_MEETS_RECOMPUTE, two_steps

from minidist.analysis.loosened.experiment import MEASURED, Experiment, Method, Run
from minidist.analysis.time.bubbles import slots_of
from minidist.nn.gpt import GPTConfig
from minidist.nn.precision.formats import BFLOAT16, E4M3, FLOAT16
from minidist.parallel.tools.schedule_check import Slot, bubble, needs, timeline
from minidist.parallel.tools.schedules import schedule
from minidist.plan.batches.experiment import BatchExperiment
from minidist.plan.cluster.hardware import load
from minidist.plan.scaling import experiment as scaling_experiment
from minidist.plan.scaling.laws import ScalingLaw
from minidist.show import notebook
from minidist.show.figures import (
    bits,
    contributions,
    grid,
    large_batches,
    loosened,
    memory,
    overlap,
    pipelines,
    roofline,
    scaling,
    waits,
)
from minidist.show.figures import timeline as lanes
from minidist.show.palette import RANKS
from minidist.show.perfetto import to_perfetto
from minidist.trace import Event, Message
from minidist.train.config import TrainConfig
from minidist.train.layout import Layout
from minidist.train.result import RunOptions
from minidist.train.trainer import run


def test_bits_are_those_of_the_number_and_of_the_nearest_one():
    assert bits.rows(-1.5, [BFLOAT16, E4M3]) == [
        ("float32", ("1", "01111111", "1" + 22 * "0"), -1.5),
        ("bfloat16", ("1", "01111111", "1000000"), -1.5),
        ("e4m3", ("1", "0111", "100"), -1.5),
    ]
    assert bits.rows(0.1, [FLOAT16])[1][2] == 0.0999755859375
    assert len(bits.draw(0.1, [BFLOAT16], "0.1").axes[0].patches) == 32 + 16


def test_a_sum_of_marks_shows_whose_contributions_it_holds():
    arrays = [contributions.marked(rank, 4) for rank in range(4)]
    some = arrays[0] + arrays[1] + arrays[3]
    assert contributions.held(some[1], 4) == [(0, 1), (1, 1), (3, 1)]
    assert [contributions.name(one, 4) for one in (arrays[2][1], some[1], sum(arrays)[3], 0)] == [
        "b2",
        "b013",
        "Σd",
        "",
    ]
    assert int(sum(contributions.marked(rank, 8).sum() for rank in range(8))) == 2**64 - 1  # 64 different bits
    with pytest.raises(ValueError, match="at most 8"):
        contributions.marked(0, 9)
    before = np.stack(arrays)
    after = before.copy()
    after[1, 0] += before[0, 0]
    panels = contributions.draw([("before", before), ("after", after)], 4, outline_changes=True).axes
    assert [sum(p.get_fill() for p in axes.patches) for axes in panels] == [16, 17]  # a stripe for each


def test_memory_fills_one_device_after_the_other_and_nothing_is_lost():
    buckets = {"parameters": 140.0, "gradients": 140.0, "master": 280.0, "exp_avg": 280.0, "exp_avg_sq": 280.0}
    devices = memory.fill(buckets, 80.0)
    assert len(devices) == 14 and all(pieces[-1][2] == pytest.approx(80) for pieces in devices)
    for name, amount in buckets.items():
        pieces = [high - low for pieces in devices for piece, low, high in pieces if piece == name]
        assert sum(pieces) == pytest.approx(amount)
    assert len(memory.fill({str(i): 0.1 for i in range(10)}, 0.1)) == 10 and memory.fill({"nothing": 0.0}, 80) == []
    assert {30, 50} <= {*heights(memory.draw({"parameters": 50, "gradients": 60}, 80, "a title").axes[0])}


def test_runs_share_a_time_axis_and_logs_are_drawn_and_exported():
    figure = overlap.draw({"short": [two_steps()] * 2, "long": [two_steps(), two_steps(late=5 * MS)]})
    assert [axes.lines[0].get_xdata()[0] for axes in figure.axes] == [10, 15]
    assert len({axes.get_xlim() for axes in figure.axes}) == 1
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
    assert "1F1B: bubble 33.3 %" in words(figure)
    short = [[Slot(one.action, 1e-5 * one.start, 1e-5 * one.end) for one in row] for row in slots]
    assert {"microseconds", "rank 4"} <= {*words(pipelines.draw({"short": short}, "seconds", ranks=[0, 4, 8]))}


@pytest.mark.parametrize("text", ["pp=2,virtual=2", "pp=2,schedule=zb-h1"])
def test_a_real_run_does_what_the_schedule_says(ranks, text):
    """The same actions in the same order, and none before what it needs has ended."""
    layout, config = Layout.parse(text), TrainConfig(layers=4, width=16, heads=2, context=8, global_batch=8, steps=2)
    slots = slots_of([rank.log for rank in run(ranks(2), config, layout, RunOptions(trace=True)).ranks])
    assert [[slot.action for slot in row] for row in slots] == schedule(layout.schedule, 2, 4, layout.virtual)
    ended = {slot.action: slot.end for row in slots for slot in row}
    for slot in (slot for row in slots for slot in row):
        for some in needs(slot.action, 2 * layout.virtual):
            assert any(one in ended and ended[one] <= slot.start for one in some)
    assert 0 < bubble(slots) < 1


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
    gather_overlap.draw({"a run": [rank.log for rank in result.ranks]}, rank=1)


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
    assert {"3.35 TB/s of memory bandwidth", "ridge: 295 FLOPs per byte"} <= {*words(figure)}


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


def test_runs_of_a_scaling_experiment_are_beside_the_law_that_was_fitted_to_some_of_them():
    law = ScalingLaw("small", E=1.1, A=60.0, B=900.0, alpha=0.45, beta=0.5)

    def runs(budget: float, off: float = 1.0):
        for width, share in enumerate((0.4, 0.7, 1.0, 1.5, 2.5)):
            size = round(share * law.optimum(budget).parameters)
            tokens = round(budget / 6 / size)
            yield scaling_experiment.Run(budget, width, size, tokens, 6 * size * tokens, off * law.loss(size, tokens))

    given = [*runs(1e10), *runs(1e11)]
    found = scaling_experiment.Experiment(1, tuple(given), tuple(runs(1e12, 1.02)), text_tokens=1000)
    left, right = scaling.draw(found).axes
    shown = [point for line in left.lines if line.get_marker() in "osD" for point in line.get_xydata().tolist()]
    assert shown == [[run.parameters, run.loss] for run in (*given, *found.next_runs)]
    intervals = [line.get_ydata() for line in right.lines if line.get_marker() == "None" and line.get_alpha()]
    assert [tuple(one) for one in intervals] == [found.fit.predicted(r.parameters, r.tokens) for r in found.next_runs]


STEPS = 40


def method(name: str, kilobytes: float, seconds: float) -> Method:
    """Losses fall from 4 by 0.05 a step, in three seeds that are 0.01 apart."""
    losses = [[4 - 0.05 * step + 0.01 * seed for step in range(STEPS)] for seed in range(3)]
    return Method(name, "dp=4", seconds, [Run(seed, one, 2.0 + 0.1 * seed, 1e3 * kilobytes)
                                          for seed, one in enumerate(losses)])  # fmt: skip


def test_looser_steps_are_compared_after_equal_bytes_and_time(tmp_path):
    made = Experiment([method(name, 100.0 / (n + 1), 1.0 + n) for n, (name, _) in enumerate(loosened.DRAWN)])
    first, second, *_ = made.methods
    assert made.equal_bytes == 100e3 * STEPS / 10 and made.equal_seconds == STEPS / 2
    losses, reached = made.after_bytes(first)  # 4 steps: the mean of those that there are
    assert losses[0] == pytest.approx(4 - 0.05 * 1.5) and reached
    assert made.after_bytes(second)[0][2] == pytest.approx(4 - 0.05 * 3.5 + 0.02)  # half the bytes, so 8 steps
    assert made.after_seconds(second)[0][0] == pytest.approx(4 - 0.05 * 4.5)  # twice as slow, so 10 steps
    frugal = Experiment([first, method("frugal", 1.0, 0.1)])
    assert not frugal.after_bytes(frugal.methods[1])[1]
    assert loosened.row(frugal, frugal.methods[1])[-2].endswith(" *")
    assert loosened.row(frugal, first)[3] == "2.100 (2.000 to 2.200)"
    made.write(tmp_path / "experiment.json")
    assert Experiment.read(tmp_path / "experiment.json") == made
    assert {name for name, _ in loosened.DRAWN} <= {*words(loosened.draw(made))}


def test_what_the_page_says_of_looser_steps_was_measured_in_every_seed():
    experiment = Experiment.read(MEASURED)
    held_out = {one.name: one.validation_losses for one in experiment.methods}
    first = experiment.named("SGD: data parallelism")
    assert experiment.named("SGD: one bit").bytes_per_step < first.bytes_per_step / 30
    assert max(held_out["SGD: one bit"]) < min(held_out["SGD: one bit, no feedback"]) - 0.1
    assert max(held_out["PowerSGD, rank 2"]) < min(held_out["PowerSGD, no feedback"])
    assert max(held_out["one bit, no feedback"]) < min(held_out["one bit"])  # with AdamW
    assert abs(fmean(held_out["SGD: one bit"]) - fmean(held_out["SGD: data parallelism"])) < 0.05


def test_there_is_an_arrow_for_each_wait():
    axes = waits.draw([("t", 4, {0: 1, 1: 0}, {3})]).axes[0]
    places = [tuple(place) for place in waits.positions(4)]
    arrows = [(tuple(text.xyann), tuple(text.xy)) for text in axes.texts if text.get_text() == ""]
    assert arrows == [(places[0], places[1]), (places[1], places[0])]


def test_the_matrix_of_settings_shows_every_run():
    *_, seconds, _, _ = grid.draw(SP_MEETS_RECOMPUTE, "t").axes
    assert len(seconds.patches) == len(SP_MEETS_RECOMPUTE) and "X" in grid.as_text(SP_MEETS_RECOMPUTE)


def test_a_picture_that_is_made_small_for_a_notebook_keeps_its_colours():
    figure = Figure(figsize=(4, 1))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.bar(range(8), [1] * 8, width=1, color=RANKS)
    axes.set(xlim=(-0.5, 7.5), ylim=(0, 1))
    axes.axis("off")
    image = Image.open(io.BytesIO(notebook.png(figure, dpi=100)))
    middles = np.asarray(image.convert("RGB"))[50, 25:400:50]
    assert image.mode == "P"
    np.testing.assert_allclose(middles, np.array([to_rgb(colour) for colour in RANKS]) * 255, atol=6)
    notebook.compact_figures()  # outside of a notebook nothing happens
