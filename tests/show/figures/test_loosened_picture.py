"""The experiment with looser steps: what its table and its pictures take from the runs."""

from statistics import fmean

import pytest

from minidist.analysis.loosened.experiment import MEASURED, WINDOW, Experiment, Method, Run
from minidist.show.figures.loosened import DRAWN, draw, headings, row

STEPS = 40


def method(name: str, kilobytes: float, seconds: float, offset: float = 0.0) -> Method:
    """Losses fall from 4 by 0.05 a step, in three seeds that are 0.01 apart."""
    runs = [
        Run(seed, [4 - 0.05 * step + 0.01 * seed + offset for step in range(STEPS)], 2.0 + 0.1 * seed, 1e3 * kilobytes)
        for seed in range(3)
    ]
    return Method(name, "dp=4", seconds, runs)


def made_up() -> Experiment:
    return Experiment([method(name, 100.0 / (place + 1), 1.0 + place) for place, (name, _) in enumerate(DRAWN)])


def test_losses_after_equal_bytes_and_time():
    first, second, *_ = made_up().methods
    experiment = made_up()
    assert experiment.equal_bytes == 100e3 * STEPS / 10 and experiment.equal_seconds == STEPS / 2
    losses, reached = experiment.after_bytes(first)  # 4 steps: the mean of those that there are
    assert losses[0] == pytest.approx(4 - 0.05 * 1.5) and reached
    losses, reached = experiment.after_bytes(second)  # half the bytes, so 8 steps
    assert losses[2] == pytest.approx(4 - 0.05 * 3.5 + 0.02) and reached
    losses, _ = experiment.after_seconds(second)  # twice as slow, so 10 steps
    assert losses[0] == pytest.approx(4 - 0.05 * 4.5)
    frugal = Experiment([first, method("frugal", 1.0, 0.1)])
    losses, reached = frugal.after_bytes(frugal.methods[1])
    assert losses[0] == pytest.approx(4 - 0.05 * (STEPS - (WINDOW + 1) / 2)) and not reached
    assert row(frugal, frugal.methods[1])[-2].endswith(" *") and not row(frugal, first)[-2].endswith("*")
    assert row(frugal, first)[3] == "2.100 (2.000 to 2.200)" and len(headings(frugal)) == len(row(frugal, first))


def test_it_is_read_as_it_was_written(tmp_path):
    made_up().write(tmp_path / "experiment.json")
    assert Experiment.read(tmp_path / "experiment.json") == made_up()


def test_the_pictures_show_every_seed(readable_figures):
    left, right = draw(made_up()).axes
    assert len(left.lines) == len(right.lines) == len(DRAWN) == len(left.collections)
    assert [line.get_label() for line in right.lines] == [name for name, _ in DRAWN]
    assert left.lines[1].get_xdata()[-1] == pytest.approx(STEPS * 0.05) and right.lines[1].get_xdata()[-1] == 2 * STEPS


def test_what_was_measured():
    """What the page says of the runs, in every seed."""
    experiment = Experiment.read(MEASURED)
    held_out = {method.name: method.validation_losses for method in experiment.methods}
    first = experiment.named("SGD: data parallelism")
    assert experiment.named("SGD: one bit").bytes_per_step < first.bytes_per_step / 30
    assert max(held_out["SGD: one bit"]) < min(held_out["SGD: one bit, no feedback"]) - 0.1
    assert max(held_out["PowerSGD, rank 2"]) < min(held_out["PowerSGD, no feedback"])
    assert max(held_out["one bit, no feedback"]) < min(held_out["one bit"])  # with AdamW
    assert abs(fmean(held_out["SGD: one bit"]) - fmean(held_out["SGD: data parallelism"])) < 0.05
